// SPDX-License-Identifier: Apache-2.0
// A small network of the pruning paper's theory and data for it.
#pragma once

#include <torch/torch.h>

#include <memory>

#include "moesaic/data/dataset.h"
#include "moesaic/models/registry.h"
#include "moesaic/papers/pruning_theory.h"
#include "moesaic/report/probe.h"

namespace moesaic::report_test {

/// Six experts, the first three with the sign +1, which select 3 of the 8 tokens of 12 patterns.
inline PatternMoEConfig small_patterns() {
  return {.num_patterns = 12,
          .num_tokens = 8,
          .num_experts = 6,
          .num_neurons = 5,
          .num_selected_tokens = 3,
          .router_std = 0.5,
          .neuron_std = 0.5};
}

inline std::shared_ptr<PatternMoE> pattern_model() {
  return std::make_shared<PatternMoE>(small_patterns(), 3);
}

/// A network without patterns, on the meta device.
inline std::shared_ptr<Model> cluster_network() {
  return build_meta_model(
      Value::from_json({{"name", "cluster-moe"}, {"num_experts", 4}, {"num_filters", 4}}, "model"));
}

inline std::shared_ptr<const Dataset> pattern_data(const at::Tensor& tokens_Nn,
                                                   const at::Tensor& label_N) {
  DatasetInfo info{.name = "patterns", .split = "test"};
  info.classes = {"o1", "o2"};
  info.directions = {{"pattern", at::eye(12)}};
  return make_input_dataset(
      info, {.values_NCHW = tokens_Nn.unsqueeze(1).unsqueeze(1), .labels_N = label_N});
}

inline Measurement measured(const char* probe, Model& model,
                            const std::shared_ptr<const Dataset>& data) {
  const c10::InferenceMode inference;
  ProbedModel subject(model, 0, {{"train", data}, {"test", data}}, {});
  Measurement measurement;
  probes().at(probe).measure(subject, measurement);
  return measurement;
}

}  // namespace moesaic::report_test
