// SPDX-License-Identifier: Apache-2.0
// How good a network is on a dataset, and how its experts are used there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moesaic/data/dataset.h"
#include "moesaic/models/model.h"
#include "moesaic/train/quality.h"

namespace moesaic {

struct EvaluateOptions {
  int64_t batch_size = 256;
  int64_t loader_threads = 1;
  /// Called with the pictures done: 0 at first, then after each batch; false ends the evaluation
  /// early.
  std::function<bool(int64_t done, int64_t total)> proceed;
  std::string loss;  ///< see main_loss.h; empty: softmax, or ensemble_softmax for an ensemble
  std::string precision = "float32";  ///< see Autocast
};

/// How one MoE layer routed a dataset.
struct LayerRouting {
  int64_t block = 0;
  int64_t experts = 0;        ///< E, rows of the router
  std::vector<int64_t> kept;  ///< experts that are computed
  double rows_per_token = 0;  ///< rows that kept experts computed for a token, on average
  std::vector<double> load;   ///< of each kept expert: its share of these rows
};

struct Evaluation : Quality {
  bool complete = true;  ///< false where `proceed` ended it; then nothing else is to be used
  double seconds = 0.0;
  double images_per_second = 0.0;
  std::vector<LayerRouting> routing;

  RowsPerToken rows_per_token() const;
};

/// Runs the network over every picture once, in order, in evaluation and inference mode (the mode
/// that it was in comes back). Apart from the times, the same bits for any number of threads.
/// Throws Error (usage) where pictures or classes do not fit the network.
Evaluation evaluate(Model& model, std::shared_ptr<const Dataset> dataset,
                    const EvaluateOptions& options = {});

/// Throws Error (usage) that names both shapes, or both numbers of classes, where they differ.
void check_fits(const Model& model, const DatasetInfo& data);

/// [{"layer", "experts", "kept", "rows_per_token", "load"}, ...]
nlohmann::ordered_json to_json(const std::vector<LayerRouting>& routing);

}  // namespace moesaic
