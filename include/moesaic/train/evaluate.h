// SPDX-License-Identifier: Apache-2.0
// Evaluation of a network on a dataset: metrics, and the use of its experts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/data/dataset.h"
#include "moesaic/models/model.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/train/task.h"

namespace moesaic {

class Processes;  // parallel/processes.h

/// A batch with the network's output, for EvaluateOptions::observe.
struct EvaluatedBatch {
  const Dataset& dataset;
  int64_t first = 0;              ///< Index of the batch's first image in the dataset.
  const at::Tensor& images_BCHW;  ///< Preprocessed images, [B, C, H, W].
  const at::Tensor& labels_B;     ///< Classes [B] int64.
  const at::Tensor& groups_B;     ///< Groups [B] int64; undefined where the dataset has none.
  const ModelOutput& output;
  const Model& model;
};

struct EvaluateOptions {
  int64_t batch_size = 256;
  int64_t loader_threads = 1;
  /// Called with the number of images done, 0 at first, then after each batch; false ends the
  /// evaluation early, that of all processes.
  std::function<bool(int64_t done, int64_t total)> proceed;
  /// Objective that trained the network (train/objective.h); empty means the default one.
  std::string loss = {};
  std::string precision = "float32";  ///< See Autocast.
  /// Processes that share the batches and call this together; each returns the whole result. Null:
  /// this one is alone.
  std::shared_ptr<const Processes> processes = {};
  /// Called with each batch, in order, in inference mode.
  std::function<void(const EvaluatedBatch& batch)> observe = {};
};

/// How tokens of each class or group of images were dispatched: rows [classes, K] of K kept
/// experts.
struct Dispatch {
  std::vector<std::vector<int64_t>> rows;
  double entropy = 0.0;  ///< Eq. 6.1 of the clusters paper, see dispatch_entropy().
};

/// Routing statistics of one MoE layer on a dataset.
struct LayerRouting {
  int64_t block = 0;
  int64_t experts = 0;               ///< Rows of the router, E.
  std::vector<int64_t> kept;         ///< Ids of the kept experts.
  double rows_per_token = 0;         ///< Mean rows per token that kept experts computed.
  std::vector<double> load;          ///< Fraction of these rows of each kept expert.
  Dispatch by_class;                 ///< Without rows where the dataset has no classes.
  std::optional<Dispatch> by_group;  ///< Set where the dataset has groups.
};

struct Evaluation {
  Metrics metrics;      ///< Of the data's task: "accuracy" in %, "loss", ...; see train/task.h.
  Confusion confusion;  ///< Empty where targets are real numbers.
  int64_t images = 0;
  bool complete = true;  ///< False where `proceed` ended it; then the rest is invalid.
  double seconds = 0.0;
  double images_per_second = 0.0;
  std::vector<LayerRouting> routing;

  /// Returns a metric by its name. Throws Error where the task has no metric of that name.
  double metric(const std::string& name) const;
  RowsPerToken rows_per_token() const;
};

/// Runs the network over every image once, in order, in evaluation and inference mode, and restores
/// the mode it was in. Results, apart from times, have the same bits for any number of threads.
/// Throws Error (usage) where images or classes do not fit the network.
Evaluation evaluate(Model& model, std::shared_ptr<const Dataset> dataset,
                    const EvaluateOptions& options = {});

/// Warns where processes cannot have equal parts of an evaluation's batches: each makes all of it.
void warn_unless_shared(int64_t batch_size, const Processes& processes);

/// Throws Error (usage) that names both shapes of inputs if they differ.
void check_takes(const Model& model, const DatasetInfo& data);

/// Throws Error (usage) that names both shapes, or both numbers of outputs, if they differ.
void check_fits(const Model& model, const DatasetInfo& data);

/// Returns [{"layer", "experts", "kept", "rows_per_token", "load", ...}, ...]. Where there are
/// classes each also has "dispatch_entropy" and "dispatch", and where there are groups
/// "group_dispatch_entropy" and "group_dispatch".
nlohmann::ordered_json to_json(const std::vector<LayerRouting>& routing);

struct CalibrateOptions {
  int64_t images = 1024;     ///< The first ones of an order by `seed`; all where there are fewer.
  int64_t batch_size = 256;  ///< Where images share capacities, as in the run's evaluations.
  int64_t loader_threads = 1;
  uint64_t seed = 0;
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// Returns what the network's experts do on images of the dataset, in evaluation mode: the same for
/// any number of threads. Throws Error (usage) where the images do not fit the network.
ExpertUse calibrate(Model& model, const std::shared_ptr<const Dataset>& dataset,
                    const CalibrateOptions& options = {});

/// Returns the split that calibration images are of: "validation" where the data has one, else
/// "train".
std::string calibration_split(const std::vector<std::string>& splits);

}  // namespace moesaic
