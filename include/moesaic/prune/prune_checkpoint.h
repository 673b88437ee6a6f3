// SPDX-License-Identifier: Apache-2.0
// From two checkpoints to a smaller one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "moesaic/prune/plan.h"

namespace moesaic {

/// What a network costs to ship and to run.
struct Footprint {
  int64_t parameters = 0;
  int64_t bytes = 0;   ///< of parameters and buffers
  double flops = 0.0;  ///< an image, matrix products only, see even_rows_per_token()
};

Footprint footprint(const Model& model);

/// Rows that experts compute for a token if tokens spread evenly over the E experts: k K / E where
/// K are left. The true number depends on the data.
RowsPerToken even_rows_per_token(const Model& model);

struct PruneCheckpointOptions {
  std::filesystem::path finetuned;  ///< a run or a checkpoint
  std::filesystem::path
      pretrained;             ///< likewise; may be empty where the criterion does not need it
  std::filesystem::path out;  ///< absent, or an empty folder
  std::string criterion = "router-norm-change";
  KeepSpec keep;
  uint64_t seed = 0;
};

struct PruneCheckpointResult {
  PrunePlan plan;
  Footprint before, after;
};

/// Writes a checkpoint of the pruned network; its config.json carries what was kept, the
/// optimizer's state is left out. Throws Error (usage) if `out` holds anything, before any work;
/// nothing is half-written.
PruneCheckpointResult prune_checkpoint(const PruneCheckpointOptions& options);

/// The plan and the footprints as a table for people.
std::string describe(const PruneCheckpointResult& result);

}  // namespace moesaic
