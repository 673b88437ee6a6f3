// SPDX-License-Identifier: Apache-2.0
// Prunes a fine-tuned checkpoint, if needed by comparison with the pre-trained one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "moesaic/prune/plan.h"

namespace moesaic {

/// Size and cost of a network.
struct Footprint {
  int64_t parameters = 0;
  int64_t bytes = 0;   ///< Size of parameters and buffers in bytes.
  double flops = 0.0;  ///< FLOPs per image of matrix products, see even_rows_per_token().
};

Footprint footprint(const Model& model);

/// Returns the expected expert rows per token if tokens spread evenly over the E experts: k K / E
/// with K experts left. The true number depends on the data.
RowsPerToken even_rows_per_token(const Model& model);

struct PruneCheckpointOptions {
  std::filesystem::path finetuned;   ///< Run or checkpoint to prune.
  std::filesystem::path pretrained;  ///< Run or checkpoint to compare with; may be empty.
  std::filesystem::path out;         ///< Output directory; absent or empty.
  std::string criterion = "router-norm-change";
  KeepSpec keep;
  uint64_t seed = 0;
  std::string device = "cpu";  ///< Where the criterion is computed.
};

struct PruneCheckpointResult {
  PrunePlan plan;
  Footprint before, after;
};

/// Writes a checkpoint of the pruned network. Its config.json records the kept experts; the
/// optimizer state is dropped. Warns where the pre-trained checkpoint is the later one by what the
/// two say of their runs. Throws Error (usage) before any work if `out` is not empty; a
/// failure leaves no partial checkpoint.
PruneCheckpointResult prune_checkpoint(const PruneCheckpointOptions& options);

/// Returns the plan and the footprints as a text table.
std::string describe(const PruneCheckpointResult& result);

}  // namespace moesaic
