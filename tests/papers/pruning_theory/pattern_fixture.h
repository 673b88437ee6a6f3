// SPDX-License-Identifier: Apache-2.0
// A small network of the pruning paper's theory and data for it.
#pragma once

#include <torch/torch.h>

#include <memory>

#include "moesaic/data/dataset.h"
#include "moesaic/papers/pruning_theory.h"
#include "moesaic/report/probe.h"

namespace moesaic::report_test {

/// Six experts, the first three with the sign +1, which select 3 of the 8 tokens of 12 patterns.
inline std::shared_ptr<PatternMoE> pattern_model(uint64_t seed = 3) {
  PatternMoEConfig config;
  config.num_patterns = 12;
  config.num_tokens = 8;
  config.num_experts = 6;
  config.num_neurons = 5;
  config.num_selected_tokens = 3;
  config.router_std = config.neuron_std = 0.5;
  return std::make_shared<PatternMoE>(config, seed);
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
