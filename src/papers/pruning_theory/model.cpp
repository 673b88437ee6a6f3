// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/pruning_theory.h"

#include <torch/torch.h>

#include "moesaic/models/router_config.h"
#include "moesaic/nn/init.h"

namespace moesaic::nn {

PatternExpertsImpl::PatternExpertsImpl(int64_t experts, int64_t patterns, int64_t hidden,
                                       double std, const at::Generator& generator) {
  w = register_parameter("w",
                         torch::empty({experts, patterns, hidden}).normal_(0.0, std, generator));
  sign = register_buffer("sign", torch::ones({experts}));
  sign.narrow(0, experts / 2, experts - experts / 2).fill_(-1.0);
}

ExpertRows PatternExpertsImpl::compute(const at::Tensor& rows_A1, const Routing& routing,
                                       const at::Generator&) {
  const at::Tensor expert_A = row_experts(routing), unused_A = expert_A.eq(routing.num_experts());
  const at::Tensor slot_A = expert_A.masked_fill(unused_A, 0);
  const at::Tensor sums_A = w.index({slot_A, rows_A1.squeeze(1).to(at::kLong)}).relu().sum({1});
  const at::Tensor outputs_A = (sums_A * sign.index({slot_A})).masked_fill(unused_A, 0.0);
  return {outputs_A.unsqueeze(1), {}};
}

}  // namespace moesaic::nn

namespace moesaic {
namespace {

nn::RouterOptions pattern_router(const PatternMoEConfig& config) {
  return {.width = config.num_patterns,
          .num_experts = config.num_experts,
          .rule = {.kind = RoutingKind::expert_choice,
                   .l = config.num_selected_tokens,
                   .gate = Gate::softmax_selected,
                   .group_size = config.num_tokens,
                   .kept = config.kept_experts}};
}

}  // namespace

ConfigProblem config_problem(const PatternMoEConfig& config) {
  if (config.num_selected_tokens > config.num_tokens) {
    return {fmt::format("an expert cannot select {0} of {1} tokens; choose at most {1}",
                        config.num_selected_tokens, config.num_tokens),
            {"num_selected_tokens", "num_tokens"}};
  }
  if (config.num_experts % 2 != 0) {
    return {
        fmt::format("num_experts {} must be even, since half of the experts subtract; choose {}",
                    config.num_experts, config.num_experts + 1),
        {"num_experts"}};
  }
  return kept_setting_problem(config.kept_experts, config.num_experts, "kept_experts");
}

PatternMoE::PatternMoE(PatternMoEConfig config, uint64_t seed) : OneLayerModel(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  experts = nn::PatternExperts(config_.num_experts, config_.num_patterns, config_.num_neurons,
                               config_.neuron_std, generator);
  if (!config_.kept_experts.empty()) experts->keep(config_.kept_experts);
  moe = register_module("moe", nn::MoELayer(pattern_router(config_), experts.ptr(), generator));
  const torch::NoGradGuard no_grad;
  moe->router->weight.normal_(0.0, config_.router_std, generator);
}

ModelOutput PatternMoE::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  check_input_shape(*this, config_.name, "inputs", images_BCHW);
  const at::Tensor tokens_T1 = images_BCHW.reshape({-1, 1});
  const at::Tensor known = at::arange(config_.num_patterns, tokens_T1.options());
  const at::Tensor x_Td = tokens_T1.eq(known).to(moe->router->weight.scalar_type());
  const nn::MoEOutput routed = moe->forward(x_Td, tokens_T1, random);
  const at::Tensor f_B1 =
      routed.y_Td.view({images_BCHW.size(0), config_.num_tokens}).sum(1, /*keepdim=*/true);
  return {at::cat({f_B1 / 2, -f_B1 / 2}, 1), f_B1, {routed}};
}

}  // namespace moesaic
