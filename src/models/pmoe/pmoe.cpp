// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/pmoe/pmoe.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "moesaic/models/router_config.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/patches.h"

namespace moesaic {
namespace {

bool is_by_class(const PMoEConfig& config) {
  return config.output == "by_class";
}

nn::PatchExpertsOptions expert_options(const PMoEConfig& config) {
  return {.experts = config.experts,
          .width = config.width(),
          .hidden = config.hidden,
          .outputs = config.classes == 2 ? 1 : config.classes,
          .init_std = config.init_std,
          .by_class = is_by_class(config)};
}

nn::RouterOptions patch_router(const PMoEConfig& config) {
  ExpertChoiceOptions rule;
  rule.gate = expert_gate_from_name(config.router->gate);
  rule.rows = config.router->selected;
  rule.group_size = config.patches();
  rule.kept = config.router->kept_experts;
  nn::RouterOptions options;
  options.width = config.width();
  options.experts = config.experts;
  options.rule = rule;
  return options;
}

/// Returns a routing of all patches to one expert, with gates of 1.
Routing to_one_expert(int64_t patches, const at::Tensor& like) {
  Routing routing;
  routing.offsets = offsets_of_one_expert(patches, like.device());
  routing.token = at::arange(patches, like.options().dtype(at::kInt));
  return routing;
}

std::string sides_text(const Sides& sides) {
  return fmt::format("{} x {}", sides.height, sides.width);
}

}  // namespace

ConfigProblem config_problem(const PMoEConfig& config) {
  const Sides &image = config.image_size, &patch = config.patch_size;
  if (image.height % patch.height != 0 || image.width % patch.width != 0) {
    return {fmt::format("patches of {} do not divide an image of {}", sides_text(patch),
                        sides_text(image)),
            {"patch_size", "image_size"}};
  }
  if (is_by_class(config) && config.experts % config.classes != 0) {
    return {fmt::format("{} experts cannot be shared out among {} classes", config.experts,
                        config.classes),
            {"experts", "classes", "output"}};
  }
  if (!config.router) {
    if (config.experts == 1) return {};
    return {fmt::format("{} experts need a router", config.experts), {"router", "experts"}};
  }
  if (config.router->selected > config.patches()) {
    return {fmt::format("an expert cannot select {} of {} patches", config.router->selected,
                        config.patches()),
            {"router.selected", "patch_size", "image_size"}};
  }
  if (config.router->kept_experts.empty()) return {};
  ConfigProblem problem =
      kept_problem(config.router->kept_experts, config.experts, "router.kept_experts");
  problem.blamed = {"router.kept_experts"};
  return problem;
}

PMoE::PMoE(PMoEConfig config, uint64_t seed) : config_(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  experts = nn::PatchExperts(expert_options(config_), generator);
  if (!config_.router) {
    register_module("experts", experts);
    return;
  }
  if (!config_.router->kept_experts.empty()) experts->keep(config_.router->kept_experts);
  moe = register_module("moe", nn::MoELayer(patch_router(config_), experts.ptr(), generator));
  const torch::NoGradGuard no_grad;
  moe->router->weight.normal_(0.0, config_.router->init_std, generator);
}

double PMoE::divisor() const {
  return static_cast<double>(config_.divisor == "patches" ? config_.patches() : config_.selected());
}

ModelOutput PMoE::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  check_input_shape(*this, config_.name, "images", images_BCHW);
  const at::Tensor x_Td = nn::patches_of(images_BCHW, config_.patch_size).flatten(0, 1);
  ModelOutput out;
  at::Tensor y_To;
  if (moe.is_empty()) {
    y_To = experts->compute(x_Td, to_one_expert(x_Td.size(0), x_Td), random).outputs;
  } else {
    nn::MoEOutput routed = moe->forward(x_Td, random);
    y_To = routed.y_Td;
    out.routings.push_back(std::move(routed));
  }
  out.pre_logits =
      y_To.view({images_BCHW.size(0), config_.patches(), y_To.size(1)}).sum(1) / divisor();
  const at::Tensor& f = out.pre_logits;
  out.logits = config_.classes == 2 ? at::cat({f / 2, -f / 2}, 1) : f;
  return out;
}

nlohmann::ordered_json PMoE::config() const {
  PMoEConfig config = config_;
  if (!moe.is_empty()) config.router->kept_experts = nn::kept_experts(moe->options().rule);
  return to_json(config);
}

void PMoE::reset_head(int64_t classes) {
  fail_usage("{}: its output layer is fixed: there is no head to be made for {} classes",
             config_.name, classes);
}

std::vector<MoEBlock> PMoE::moe_blocks() const {
  if (moe.is_empty()) return {};
  return {{.block = 0, .layer = moe, .groups = is_by_class(config_) ? config_.classes : 0}};
}

std::vector<int64_t> PMoE::input_shape() const {
  return {config_.channels, config_.image_size.height, config_.image_size.width};
}

std::optional<PatchTokens> PMoE::patch_tokens() const {
  return PatchTokens{{config_.image_size.height / config_.patch_size.height,
                      config_.image_size.width / config_.patch_size.width}};
}

double PMoE::flops_per_image(const RowsPerToken& rows_per_token) const {
  if (!moe.is_empty()) return layer_flops(moe_blocks()[0], config_.patches(), rows_per_token);
  return static_cast<double>(config_.patches()) * experts->flops_per_row();
}

SettingPaths PMoE::setting_paths() const {
  return {.rows_per_expert = "router.selected",
          .classes = "classes",
          .image_size = "image_size",
          .channels = "channels",
          .kept_experts = "router.kept_experts"};
}

std::map<std::string, at::Tensor> PMoE::weight_directions() const {
  std::map<std::string, at::Tensor> found = {{"neuron", experts->w.detach().transpose(1, 2)}};
  if (moe.is_empty()) return found;
  found["router"] = moe->router->weight.detach().index({torch::tensor(moe->kept())}).unsqueeze(1);
  return found;
}

}  // namespace moesaic
