// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/cluster_moe/cluster_moe.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "../input_shape.h"
#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"

namespace moesaic {
namespace {

int64_t present_experts(const ClusterMoEConfig& config) {
  return config.router ? present_experts(*config.router, config.experts) : config.experts;
}

nn::FilterExpertsOptions expert_options(const ClusterMoEConfig& config) {
  return {.experts = present_experts(config),
          .patches = config.patches,
          .width = config.width,
          .filters = config.filters,
          .outputs = config.classes,
          .activation = activation_from_name(config.activation),
          .init_scale = config.init_scale};
}

/// Returns a routing of all tokens to one expert.
Routing to_one_expert(const at::Tensor& x_TPd) {
  const auto ints = x_TPd.options().dtype(at::kInt);
  const int64_t tokens = x_TPd.size(0);
  Routing routing;
  routing.offsets = at::tensor({int64_t{0}, tokens}, ints);
  routing.token = at::arange(tokens, ints);
  return routing;
}

}  // namespace

int64_t router_width(const ClusterMoEConfig& config) {
  return config.router->width > 0 ? config.router->width : config.width;
}

ConfigProblem config_problem(const ClusterMoEConfig& config) {
  if (config.filters % config.classes != 0) {
    return {
        fmt::format("{} filters cannot be shared out among {} classes; the next that can are {}",
                    config.filters, config.classes,
                    (config.filters / config.classes + 1) * config.classes),
        {"filters", "classes"}};
  }
  if (!config.router && config.experts != 1) {
    return {fmt::format("{} experts need a router; without one 'experts' is 1", config.experts),
            {"experts", "router"}};
  }
  if (config.router && config.width % router_width(config) != 0) {
    return {fmt::format("a patch of {} cannot be cut into pieces of {}", config.width,
                        router_width(config)),
            {"router", "width"}};
  }
  return config.router ? router_problem(*config.router, config.experts) : ConfigProblem{};
}

ClusterMoE::ClusterMoE(ClusterMoEConfig config, uint64_t seed) : config_(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  experts = nn::FilterExperts(expert_options(config_), generator);
  if (!config_.router) {
    register_module("experts", experts);
    return;
  }
  const nn::RouterOptions router =
      router_options(*config_.router, router_width(config_), config_.experts);
  moe = register_module("moe", nn::MoELayer(router, experts.ptr(), generator));
  const torch::NoGradGuard no_grad;
  moe->router->weight.zero_();
}

ModelOutput ClusterMoE::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  check_input_shape(*this, config_.name, "inputs", images_BCHW);
  const at::Tensor x_TPd = images_BCHW.squeeze(1);
  if (moe.is_empty()) {
    const at::Tensor logits = experts->compute(x_TPd, to_one_expert(x_TPd), random).outputs;
    return {logits, logits, {}};
  }
  const nn::MoEOutput out = moe->forward(router_input(images_BCHW), x_TPd, random);
  return {out.y_Td, out.y_Td, {out}};
}

void ClusterMoE::set_first_sample_index(int64_t image) {
  if (!moe.is_empty()) moe->router->set_first_sample_index(image);
}

std::vector<MoEBlock> ClusterMoE::moe_blocks() const {
  if (moe.is_empty()) return {};
  return {{.block = 0, .layer = moe}};
}

at::Tensor ClusterMoE::patch_sums(const at::Tensor& images_BCHW) const {
  const int64_t width = router_width(config_);
  return images_BCHW.reshape({images_BCHW.size(0), config_.patches * config_.width / width, width})
      .sum(1);
}

at::Tensor ClusterMoE::router_input(const at::Tensor& images_BCHW) {
  const bool wants_gradient = at::GradMode::is_enabled() && images_BCHW.requires_grad();
  if (wants_gradient || c10::InferenceMode::is_enabled() || images_BCHW.is_inference()) {
    return patch_sums(images_BCHW);
  }
  const uint64_t version = images_BCHW._version();
  if (!last_.inputs.defined() || !last_.inputs.is_same(images_BCHW) || last_.version != version) {
    last_ = {images_BCHW, patch_sums(images_BCHW), version};
  }
  return last_.sums;
}

nlohmann::ordered_json ClusterMoE::config() const {
  ClusterMoEConfig config = config_;
  if (!moe.is_empty()) config.router->kept_experts = nn::kept_experts(moe->options().rule);
  return to_json(config);
}

void ClusterMoE::reset_head(int64_t classes) {
  fail_usage(
      "{}: its experts have a fixed second layer: there is no head to be made for {} classes",
      config_.name, classes);
}

std::vector<int64_t> ClusterMoE::input_shape() const {
  return {1, config_.patches, config_.width};
}

double ClusterMoE::flops_per_image(const RowsPerToken& rows_per_token) const {
  if (moe.is_empty()) return experts->flops_per_row();
  return layer_flops({.block = 0, .layer = moe}, tokens_per_image(), rows_per_token);
}

}  // namespace moesaic
