// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/latent.h"

#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

#include "moesaic/models/router_config.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/script.h"

namespace moesaic {
namespace {

nn::ShallowExpertsOptions expert_options(const LatentMoEConfig& config) {
  return {.experts = config.experts,
          .width = config.width,
          .hidden = config.hidden,
          .bias = config.bias,
          .hermite = config.activation == "hermite",
          .min_degree = config.min_degree,
          .max_degree = config.max_degree};
}

}  // namespace

ConfigProblem config_problem(const LatentMoEConfig& config) {
  if (config.min_degree > config.max_degree) {
    return {
        fmt::format("min_degree {} is above max_degree {}", config.min_degree, config.max_degree),
        {"min_degree", "max_degree"}};
  }
  return kept_setting_problem(config.kept_experts, config.experts, "kept_experts");
}

LatentMoE::LatentMoE(LatentMoEConfig config, uint64_t seed) : OneLayerModel(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  experts = nn::ShallowExperts(expert_options(config_), generator);
  if (!config_.kept_experts.empty()) experts->keep(config_.kept_experts);
  moe = register_module(
      "moe", nn::MoELayer(nn::latent_router_options(config_.width, config_.experts, config_.routing,
                                                    config_.kept_experts),
                          experts.ptr(), generator));
  const torch::NoGradGuard no_grad;
  moe->router->weight.zero_();
}

ModelOutput LatentMoE::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  check_input_shape(*this, config_.name, "inputs", images_BCHW);
  const nn::MoEOutput routed = moe->forward(images_BCHW.flatten(1), random);
  return {routed.y_Td, routed.y_Td, {routed}};
}

std::optional<torch::jit::Module> LatentMoE::torchscript() const {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  return script::make_module(
      unit, "LatentMoE", *this, {{"moe", script::make_moe_layer(unit, *moe, {config_.width})}},
      script::entrance(input_shape()) +
          "    inputs = images.flatten(1)\n    return self.moe.forward(inputs, inputs)\n");
}

std::map<std::string, at::Tensor> LatentMoE::weight_directions() const {
  return {{"neuron", experts->w.detach()},
          {"router",
           moe->router->weight.detach().index({index_on(device(), moe->kept())}).unsqueeze(1)}};
}

}  // namespace moesaic
