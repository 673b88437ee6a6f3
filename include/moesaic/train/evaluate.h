// SPDX-License-Identifier: Apache-2.0
// How good a network is on a dataset, and how its experts are used there.
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
#include "moesaic/train/task.h"

namespace moesaic {

/// A batch and what the network made of it, for someone who looks on.
struct EvaluatedBatch {
  const Dataset& dataset;
  int64_t first = 0;              ///< number of the batch's first image in the dataset
  const at::Tensor& images_BCHW;  ///< as the network saw them
  const at::Tensor& labels_B;     ///< int64
  const at::Tensor& groups_B;     ///< int64; undefined where the dataset has no groups
  const ModelOutput& output;
};

struct EvaluateOptions {
  int64_t batch_size = 256;
  int64_t loader_threads = 1;
  /// Called with the images done: 0 at first, then after each batch; false ends the evaluation
  /// early.
  std::function<bool(int64_t done, int64_t total)> proceed;
  /// The objective that trained the network (train/objective.h); empty: the usual one.
  std::string loss = {};
  std::string precision = "float32";  ///< see Autocast
  /// Called with each batch, in order, in inference mode.
  std::function<void(const EvaluatedBatch& batch)> observe = {};
};

/// Which experts the tokens of each kind of image came to: rows [kinds, K] of the kept experts.
struct Dispatch {
  std::vector<std::vector<int64_t>> rows;
  double entropy = 0.0;  ///< eq. 6.1 of the clusters paper, see dispatch_entropy()
};

/// How one MoE layer routed a dataset.
struct LayerRouting {
  int64_t block = 0;
  int64_t experts = 0;        ///< E, rows of the router
  std::vector<int64_t> kept;  ///< experts that are computed
  double rows_per_token = 0;  ///< rows that kept experts computed for a token, on average
  std::vector<double> load;   ///< of each kept expert: its fraction of these rows
  Dispatch by_class;
  std::optional<Dispatch> by_group;  ///< where the dataset has groups
};

struct Evaluation {
  Metrics metrics;  ///< of the data's task: "accuracy" in %, "loss", ...; see train/task.h
  int64_t images = 0;
  bool complete = true;  ///< false where `proceed` ended it; then nothing else is to be used
  double seconds = 0.0;
  double images_per_second = 0.0;
  std::vector<LayerRouting> routing;

  /// A metric by its name. Throws Error where the task has none of that name.
  double metric(const std::string& name) const;
  RowsPerToken rows_per_token() const;
};

/// Runs the network over every image once, in order, in evaluation and inference mode (the mode
/// that it was in comes back). Apart from the times, the same bits for any number of threads.
/// Throws Error (usage) where images or classes do not fit the network.
Evaluation evaluate(Model& model, std::shared_ptr<const Dataset> dataset,
                    const EvaluateOptions& options = {});

/// Throws Error (usage) that names both shapes, or both numbers of outputs, where they differ.
void check_fits(const Model& model, const DatasetInfo& data);

/// [{"layer", "experts", "kept", "rows_per_token", "load", "dispatch_entropy", "dispatch"}, ...],
/// the last two by class, and where there are groups the same as "group_dispatch_entropy" and
/// "group_dispatch".
nlohmann::ordered_json to_json(const std::vector<LayerRouting>& routing);

}  // namespace moesaic
