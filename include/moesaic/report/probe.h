// SPDX-License-Identifier: Apache-2.0
// Probes, by name: what an experiment measures of a network during training and at its end.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/base/registry.h"
#include "moesaic/data/dataset.h"
#include "moesaic/models/model.h"
#include "moesaic/report/measurement.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {

/// A network at one step of its training. Evaluations are made on demand and shared by all probes
/// of that step.
class ProbeSubject {
 public:
  ProbeSubject(Model& model, int64_t step, std::shared_ptr<const Dataset> train,
               std::shared_ptr<const Dataset> test, EvaluateOptions options)
      : model_(model),
        step_(step),
        train_{std::move(train), {}},
        test_{std::move(test), {}},
        options_(std::move(options)) {}

  Model& model() { return model_; }
  int64_t step() const { return step_; }  ///< Number of updates so far.
  const Dataset& train() const { return *train_.data; }
  const Dataset& test() const { return *test_.data; }
  const Evaluation& on_train() { return evaluated(train_); }
  const Evaluation& on_test() { return evaluated(test_); }

 private:
  struct Split {
    std::shared_ptr<const Dataset> data;
    std::optional<Evaluation> evaluation;
  };
  const Evaluation& evaluated(Split& split) {
    if (!split.evaluation) split.evaluation = evaluate(model_, split.data, options_);
    return *split.evaluation;
  }

  Model& model_;
  int64_t step_;
  Split train_, test_;
  EvaluateOptions options_;
};

struct Probe {
  std::string meaning;  ///< Description for lists of probes.
  /// Returns the metrics of the probe for such a network (which may be on the meta device) and
  /// training data; empty where there is nothing to measure, e.g. dispatch without a router.
  std::function<std::vector<Metric>(const Model& model, const Dataset& train)> metrics;
  /// Adds a number or a table for each of these metrics. Runs in inference mode.
  std::function<void(ProbeSubject& subject, Measurement& measurement)> measure;
};

/// Returns the registry of probes. Built in are test_accuracy, train_accuracy, test_loss,
/// train_loss, steps, entropy, dispatch, load, alignment, parameters, flops; families add others.
Registry<Probe>& probes();

}  // namespace moesaic
