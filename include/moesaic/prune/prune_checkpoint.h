// SPDX-License-Identifier: Apache-2.0
// Prunes a fine-tuned checkpoint, if needed by comparison with the pretrained one.
#pragma once

#include <functional>

#include "moesaic/checkpoint/store.h"
#include "moesaic/prune/plan.h"

namespace moesaic {

/// Size and cost of a network.
struct Footprint {
  int64_t num_parameters = 0;
  int64_t bytes = 0;            ///< Size of parameters and buffers in bytes.
  double flops = 0.0;           ///< FLOPs per image of matrix products, see even_rows_per_token().
  double capacity_flops = 0.0;  ///< FLOPs per image of the capacity buffers of the experts that are
                                ///< left, which programs of static shapes compute, full or not;
                                ///< see nn::capacity_rows_per_token().
};

/// Returns the footprint; FLOPs are those of tokens that spread evenly over the experts.
Footprint footprint(const Model& model);

/// Returns the expected expert rows per token if tokens spread evenly over the E experts: k K / E
/// with K experts left, or at most k where the others were merged into them. The true number
/// depends on the data.
RowsPerToken even_rows_per_token(const Model& model);

/// Returns the statistics of a checkpoint's experts on calibration images; `model` is its network.
using Calibrate = std::function<ExpertStatistics(const Checkpoint& checkpoint, Model& model)>;

/// Options of prune_checkpoint().
struct PruneCheckpointOptions {
  fs::path finetuned;  ///< Run or checkpoint to prune.
  /// Run or checkpoint to compare with; may be empty where the criterion does not compare, but must
  /// be of the same network.
  fs::path pretrained;
  fs::path out;                   ///< Output directory; absent or empty.
  std::optional<PrunePlan> plan;  ///< A plan that was read, in place of criterion and keep.
  std::optional<PrunePlan> searched_plan;  ///< Plan of search_pruning(), in place of all these.
  PruneOptions prune;
  bool dry_run = false;        ///< Plans only.
  Calibrate calibrate;         ///< For criteria and replacements that need images.
  std::string device = "cpu";  ///< Where it runs.
  bool trust = false;          ///< Trust in both files, see LoadOptions.

  /// How the two are read: their weights stay in the files.
  LoadOptions load_options() const {
    return {.load_optimizer = false, .mmap = true, .trust = trust};
  }
};

/// Returns the checkpoint that a run's network was fine-tuned from, by its configuration: that of
/// an earlier phase, of other data if there is one, else its `init`; "" where there is none.
fs::path find_pretrained(const fs::path& run_or_checkpoint, bool trust = false);

/// Returns whether criterion, plan or replacement need calibration images.
bool needs_images(const PruneCheckpointOptions& options);

/// Returns why the two cannot be one network before and after fine-tuning, "" where they can:
/// families, routing, members and shapes decide, the numbers of experts do not, since pruning
/// changes them.
std::string pretrained_problem(const Model& finetuned, const Model& pretrained);

/// What prune_checkpoint() did.
struct PruneCheckpointResult {
  PrunePlan plan;
  Footprint before, after;
};

/// Writes a checkpoint of the pruned network. The checkpoint's config.json records the kept
/// experts; the optimizer state is dropped. The network is built only where images are needed: else
/// weights are read from the files as they are needed, and written one tensor at a time. Warns
/// where the pretrained checkpoint is the later one by what the two say of their runs, or has fewer
/// experts. Throws Error (usage) before any work if `out` is not empty, and where the criterion
/// compares with a pretrained network that lacks experts of this one; a failure leaves no partial
/// checkpoint.
PruneCheckpointResult prune_checkpoint(const PruneCheckpointOptions& options);

/// Plans by `options`, whose checkpoint is read already; `shape` is its network. Throws as
/// prune_checkpoint() does.
PrunePlan plan_checkpoint(const PruneCheckpointOptions& options, const Checkpoint& checkpoint,
                          const Model& shape);

/// Returns the plan and the footprints as a text table.
std::string describe(const PruneCheckpointResult& result);

}  // namespace moesaic
