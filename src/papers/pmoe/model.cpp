// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "moesaic/models/router_config.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/script.h"
#include "moesaic/papers/pmoe/model.h"

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

nn::PatchMixtureOptions mixture_options(const PMoEConfig& config) {
  nn::PatchMixtureOptions options;
  options.patch = config.patch_size;
  options.patches = config.patches();
  options.divisor =
      static_cast<double>(config.divisor == "patches" ? config.patches() : config.selected());
  options.experts = expert_options(config);
  if (!config.router) return options;
  options.router = patch_router(config);
  options.router_std = config.router->init_std;
  return options;
}

std::string size_text(const Sides& sides) {
  return fmt::format("{} x {}", sides.height, sides.width);
}

}  // namespace

ConfigProblem config_problem(const PMoEConfig& config) {
  const Sides &image = config.image_size, &patch = config.patch_size;
  if (image.height % patch.height != 0 || image.width % patch.width != 0) {
    return {fmt::format("patches of {} do not divide an image of {}", size_text(patch),
                        size_text(image)),
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
  mixture = register_module("mixture",
                            nn::PatchMixture(mixture_options(config_), nn::make_generator(seed)));
}

ModelOutput PMoE::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  check_input_shape(*this, config_.name, "images", images_BCHW);
  nn::PatchMixtureImpl::Output made = mixture->forward(images_BCHW, random);
  ModelOutput out;
  out.pre_logits = made.f_Bo;
  out.logits = made.logits_BC;
  if (made.routed) out.routings.push_back(std::move(*made.routed));
  return out;
}

nlohmann::ordered_json PMoE::config() const {
  PMoEConfig config = config_;
  if (config.router) {
    config.router->kept_experts = nn::kept_experts(mixture->moe->options().rule);
  }
  return to_json(config);
}

void PMoE::reset_head(int64_t classes) {
  fail_usage("{}: its output layer is fixed: there is no head to be made for {} classes",
             config_.name, classes);
}

std::vector<MoEBlock> PMoE::moe_blocks() const {
  if (mixture->moe.is_empty()) return {};
  return {
      {.block = 0, .layer = mixture->moe, .groups = is_by_class(config_) ? config_.classes : 0}};
}

std::vector<int64_t> PMoE::input_shape() const {
  return {config_.channels, config_.image_size.height, config_.image_size.width};
}

std::optional<PatchTokens> PMoE::patch_tokens() const {
  return PatchTokens{{config_.image_size.height / config_.patch_size.height,
                      config_.image_size.width / config_.patch_size.width}};
}

double PMoE::flops_per_image(const RowsPerToken& rows_per_token) const {
  if (config_.router) return layer_flops(moe_blocks()[0], config_.patches(), rows_per_token);
  return static_cast<double>(config_.patches()) * mixture->experts->flops_per_row();
}

SettingPaths PMoE::setting_paths() const {
  return {.rows_per_expert = "router.selected",
          .classes = "classes",
          .image_size = "image_size",
          .channels = "channels",
          .kept_experts = "router.kept_experts"};
}

std::map<std::string, at::Tensor> PMoE::weight_directions() const {
  std::map<std::string, at::Tensor> found = {
      {"neuron", mixture->experts->w.detach().transpose(1, 2)}};
  const nn::MoELayer& moe = mixture->moe;
  if (moe.is_empty()) return found;
  found["router"] = moe->router->weight.detach().index({torch::tensor(moe->kept())}).unsqueeze(1);
  return found;
}

namespace {

constexpr char kPatchMixture[] = R"(
def forward(self, images: Tensor) -> Tensor:
    patches = images.unflatten(3, [-1, {width}]).unflatten(2, [-1, {height}])
    x = patches.permute([0, 2, 4, 1, 3, 5]).flatten(3).flatten(0, 2)
    y = {layer}
    return y.view([images.size(0), {patches}, y.size(1)]).sum([1]) / {divisor}
)";

script::Module make_mixture(const script::Unit& unit, const nn::PatchMixtureImpl& from) {
  const nn::PatchMixtureOptions& options = from.options();
  const std::vector<int64_t> shape = {options.experts.width};
  const bool alone = from.moe.is_empty();
  const script::Children children = {
      alone ? std::pair("experts", script::make_experts(unit, *from.experts, shape))
            : std::pair("moe", script::make_moe_layer(unit, *from.moe, shape))};
  return script::make_module(
      unit, "PatchMixture", from, children,
      fmt::format(kPatchMixture, fmt::arg("width", options.patch.width),
                  fmt::arg("height", options.patch.height), fmt::arg("patches", options.patches),
                  fmt::arg("divisor", script::literal(options.divisor)),
                  fmt::arg("layer", alone ? "self.experts.one_by_one(x, [x.size(0)])"
                                          : "self.moe.forward(x, x)")));
}

}  // namespace

std::optional<torch::jit::Module> PMoE::torchscript() const {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const char* const logits =
      config_.classes == 2 ? "    return torch.cat([f / 2, -f / 2], 1)\n" : "    return f\n";
  return script::make_module(
      unit, "PMoE", *this, {{"mixture", make_mixture(unit, *mixture)}},
      script::entrance(input_shape()) + "    f = self.mixture.forward(images)\n" + logits);
}

}  // namespace moesaic
