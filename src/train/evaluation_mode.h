// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/models/model.h"

namespace moesaic {

/// Keeps a network in evaluation mode while it lives.
class EvaluationMode {
 public:
  explicit EvaluationMode(Model& model) : model_(model), training_(model.is_training()) {
    model_.eval();
    nn::share_batches(model_, {});
  }
  ~EvaluationMode() {
    model_.train(training_);
    model_.set_first_sample_index(0);
    nn::share_batches(model_, {});
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  Model& model_;
  bool training_;
};

}  // namespace moesaic
