// SPDX-License-Identifier: Apache-2.0
// Probes, by name: what an experiment measures of a network during training and at its end.
#pragma once

#include <functional>
#include <memory>

#include "moesaic/base/registry.h"
#include "moesaic/data/dataset.h"
#include "moesaic/models/model.h"
#include "moesaic/report/results.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {

/// Datasets by split; "train" and "test" are always there, "validation" where the data has one.
using DataSplits = std::map<std::string, std::shared_ptr<const Dataset>>;

/// A network at one step of its training. Evaluations are made on demand and shared by all probes
/// of that step.
struct ProbedModel {
  Model& model;
  int64_t step = 0;  ///< Number of steps so far.
  DataSplits data;
  EvaluateOptions options = {};
  /// Returns the network before its first step, unpruned, on the CPU; may be empty.
  std::function<std::shared_ptr<Model>()> start = {};
  std::map<std::string, Evaluation> evaluations = {};  ///< Those made so far, by split.

  /// Returns the evaluation on a split, made at the first call.
  const Evaluation& evaluation(const std::string& split) {
    const auto [found, is_new] = evaluations.try_emplace(split);
    if (is_new) found->second = evaluate(model, data.at(split), options);
    return found->second;
  }
};

/// A named measurement of a network.
struct Probe {
  using Metrics = std::vector<Metric>(const Model& model, const DataSplits& data);
  using Measure = void(ProbedModel& subject, Measurement& measurement);

  std::string description;  ///< Description for lists of probes.
  /// Returns the metrics of the probe for such a network (which may be on the meta device) and
  /// data; empty where there is nothing to measure, e.g. dispatch without a router.
  std::function<Metrics> metrics;
  /// Adds a number or a table for each of these metrics but optional ones. Runs in inference mode.
  std::function<Measure> measure;
};

/// Returns a table of numbers_RC, with a name for each row and column.
MeasuredTable measured_table(std::vector<std::string> rows, std::vector<std::string> columns,
                             const at::Tensor& numbers_RC);

/// Returns the registry of probes. Built in are accuracy and loss of each split (test_accuracy,
/// validation_loss, ...), steps, entropy, dispatch, load, alignment, recovery, specialisation,
/// cluster_routing, relative_error, gates, proficiency, neurons, lemmas, norms, routed, success,
/// parameters, flops; families add others.
Registry<Probe>& probes();

}  // namespace moesaic
