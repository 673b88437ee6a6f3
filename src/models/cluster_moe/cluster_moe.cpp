// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/cluster_moe/cluster_moe.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "../input_shape.h"
#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"
#include "moesaic/ops/combine.h"

namespace moesaic {
namespace {

nn::RouterOptions router_options(const ClusterMoEConfig& config) {
  TokenChoiceOptions rule;
  rule.k = 1;
  rule.gate = gate_from_name(config.router->gate);
  nn::RouterOptions options;
  options.width = router_width(config);
  options.experts = config.experts;
  options.rule = rule;
  options.noise = {noise_kind_from_name(config.router->noise), config.router->noise_scale};
  if (config.router->noise_in_evaluation) options.evaluation_seed = 0;
  return options;
}

nn::FilterNetworkOptions expert_options(const ClusterMoEConfig& config) {
  return {config.experts,
          config.width,
          config.filters,
          config.classes,
          activation_from_name(config.activation),
          config.init_scale};
}

/// All tokens to one expert.
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
  return {};
}

ClusterMoE::ClusterMoE(ClusterMoEConfig config, uint64_t seed) : config_(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  experts = register_module("experts", nn::FilterNetwork(expert_options(config_), generator));
  if (!config_.router) return;
  router = register_module("router", nn::Router(router_options(config_), generator));
  const torch::NoGradGuard no_grad;
  router->weight.zero_();
}

ModelOutput ClusterMoE::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  check_input_shape(*this, config_.name, "inputs", images_BCHW);
  const at::Tensor x_TPd = images_BCHW.squeeze(1);
  const Seen seen = look_at(images_BCHW);
  if (!config_.router) {
    const at::Tensor logits = experts->forward(x_TPd, to_one_expert(x_TPd));
    return {logits, logits, {}};
  }
  nn::RouterOutput routed = router->forward(seen.sums, random);
  const at::Tensor rows = experts->forward(x_TPd, routed.routing);
  const at::Tensor logits = combine(rows, routed.routing);
  RoutingRecord record;
  record.logits_TE = routed.logits_TE;
  record.noisy_logits_TE = routed.noisy_logits_TE;
  record.routing = std::move(routed.routing);
  for (int64_t e = 0; e < config_.experts; ++e) record.kept.push_back(e);
  return {logits, logits, {std::move(record)}};
}

void ClusterMoE::set_first_sample_index(int64_t image) {
  if (config_.router) router->set_first_sample_index(image);
}

at::Tensor ClusterMoE::patch_sums(const at::Tensor& images_BCHW) const {
  if (!config_.router) return {};
  const int64_t width = router_width(config_);
  return images_BCHW.reshape({images_BCHW.size(0), config_.patches * config_.width / width, width})
      .sum(1);
}

ClusterMoE::Seen ClusterMoE::look_at(const at::Tensor& images_BCHW) {
  const bool wants_gradient = at::GradMode::is_enabled() && images_BCHW.requires_grad();
  if (wants_gradient || c10::InferenceMode::is_enabled() || images_BCHW.is_inference()) {
    return {images_BCHW, patch_sums(images_BCHW), 0};
  }
  const uint64_t version = images_BCHW._version();
  if (!last_.inputs.defined() || !last_.inputs.is_same(images_BCHW) || last_.version != version) {
    last_ = {images_BCHW, patch_sums(images_BCHW), version};
  }
  return last_;
}

nlohmann::ordered_json ClusterMoE::config() const {
  return to_json(config_);
}

void ClusterMoE::reset_head(int64_t classes) {
  fail_usage(
      "{}: its experts have a fixed second layer: there is no head to be made for {} classes",
      config_.name, classes);
}

std::vector<int64_t> ClusterMoE::input_shape() const {
  return {1, config_.patches, config_.width};
}

double ClusterMoE::flops_per_image(const RowsPerToken&) const {
  const auto width = static_cast<double>(config_.width);
  const double router =
      config_.router ? 2.0 * static_cast<double>(router_width(config_) * config_.experts) : 0.0;
  return router + 2.0 * width * static_cast<double>(config_.patches * config_.filters);
}

}  // namespace moesaic
