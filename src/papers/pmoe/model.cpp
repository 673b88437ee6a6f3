// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include "moesaic/base/suggestions.h"
#include "moesaic/models/router_config.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/patches.h"
#include "moesaic/nn/script.h"
#include "moesaic/papers/pmoe.h"

namespace moesaic {
namespace {

/// Returns the outputs of a network: two classes share one, f, of which return_logits() makes two.
int64_t outputs_of(int64_t classes) {
  return classes == 2 ? 1 : classes;
}

/// Returns the last line of a network's TorchScript.
const char* return_logits(int64_t classes) {
  return classes == 2 ? "    return torch.cat([f / 2, -f / 2], 1)\n" : "    return f\n";
}

/// Returns the options of a router whose experts choose among the patches of an image.
nn::RouterOptions patch_router(const PMoERouterConfig& config, int64_t experts, int64_t width,
                               int64_t patches, PrunedSelection pruned) {
  return {.width = width,
          .num_experts = experts,
          .rule = {.kind = RoutingKind::expert_choice,
                   .l = config.num_selected_patches,
                   .gate = gate_from_name(config.gate),
                   .group_size = patches,
                   .kept = config.kept_experts,
                   .pruned = pruned}};
}

std::string size_text(const Size2d& sides) {
  return fmt::format("{} x {}", sides.height, sides.width);
}

constexpr char kPatchMixture[] = R"(
def forward(self, images: Tensor) -> Tensor:
    patches = images.unflatten(3, [-1, {width}]).unflatten(2, [-1, {height}])
    x = patches.permute([0, 2, 4, 1, 3, 5]).flatten(3).flatten(0, 2)
    y = {layer}
    return y.view([images.size(0), {patches}, y.size(1)]).sum([1]) / {divisor}
)";

constexpr int64_t kLastGroup = 2;

nn::MapExpertsOptions expert_options(const WrnPMoEConfig& config) {
  const int64_t channels = nn::wide_channels(kLastGroup, config.widen_factor);
  const std::vector<int64_t>& kept = config.moe->router.kept_experts;
  return {.num_experts = kept.empty() ? config.moe->num_experts : static_cast<int64_t>(kept.size()),
          .channels = channels,
          .side = config.map_size(),
          .patch = config.moe->patch_size,
          .num_outputs = channels / config.moe->num_experts,
          .kernel = config.moe->kernel_size};
}

/// No token is routed to a removed expert: it was to make channels, not to add to those of others.
nn::RouterOptions router_options(const WrnPMoEConfig& config) {
  const nn::MapExpertsOptions experts = expert_options(config);
  return patch_router(config.moe->router, config.moe->num_experts,
                      experts.channels * experts.patch * experts.patch, experts.num_patches(),
                      PrunedSelection::reroute);
}

ConfigProblem mixture_problem(const WrnPMoEConfig& config) {
  const WrnMixtureConfig& moe = *config.moe;
  const int64_t side = config.map_size(), patch = moe.patch_size;
  const int64_t channels = nn::wide_channels(kLastGroup, config.widen_factor);
  if (side % patch != 0) {
    return {fmt::format(
                "patches of {0} x {0} do not divide the last feature map, {1} x {1}; choose {2}",
                patch, side, nearest_divisor(side, patch)),
            {"moe.patch_size", "image_size"}};
  }
  const int64_t patches = side / patch * (side / patch);
  if (moe.router.num_selected_patches > patches) {
    return {fmt::format("an expert cannot select {0} of {1} patches; choose at most {1}",
                        moe.router.num_selected_patches, patches),
            {"moe.router.num_selected_patches", "moe.patch_size", "image_size"}};
  }
  if (channels % moe.num_experts != 0) {
    return {fmt::format("{1} channels of the last group cannot be divided equally among {0} "
                        "experts; choose {2}",
                        moe.num_experts, channels, nearest_divisor(channels, moe.num_experts)),
            {"moe.num_experts", "widen_factor"}};
  }
  if (moe.kernel_size % 2 == 0) {
    return {fmt::format("kernel_size {0} is even, so the kernel has no central pixel; choose {1}",
                        moe.kernel_size, moe.kernel_size + 1),
            {"moe.kernel_size"}};
  }
  return kept_setting_problem(moe.router.kept_experts, moe.num_experts, "moe.router.kept_experts");
}

constexpr char kPatches[] = R"(
    patches = y.unflatten(3, [-1, {patch}]).unflatten(2, [-1, {patch}])
    x = patches.permute([0, 2, 4, 1, 3, 5]).flatten(3).flatten(0, 2)
    y = self.moe.forward(x, x).unflatten(1, [-1, {positions}])
)";
// Channels of removed experts are zeros.
constexpr char kPruned[] = R"(
    kept = torch.tensor([{channels}], device=y.device)
    y = y.new_zeros([y.size(0), {all}, y.size(2)]).index_copy_(1, kept, y)
)";
constexpr char kMap[] = "    y = y.flatten(2)\n";
constexpr char kRest[] = R"(
    y = torch.relu(self.norm.forward(y)).mean([2])
    f = self.head.forward(y.view([images.size(0), {patches}, {all}]).mean([1]))
)";

}  // namespace

ConfigProblem config_problem(const PMoEConfig& config) {
  const Size2d &image = config.image_size, &patch = config.patch_size;
  if (image.height % patch.height != 0 || image.width % patch.width != 0) {
    return {fmt::format("patches of {} do not divide an image of {}; choose {}", size_text(patch),
                        size_text(image),
                        size_text({nearest_divisor(image.height, patch.height),
                                   nearest_divisor(image.width, patch.width)})),
            {"patch_size", "image_size"}};
  }
  if (config.is_output_by_class() && config.num_experts % config.num_classes != 0) {
    return {fmt::format("{} experts cannot be divided equally among {} classes; choose {}",
                        config.num_experts, config.num_classes,
                        (config.num_experts / config.num_classes + 1) * config.num_classes),
            {"num_experts", "num_classes", "output"}};
  }
  if (!config.router) {
    if (config.num_experts == 1) return {};
    return {fmt::format("{} experts need a router; give one, or set num_experts to 1",
                        config.num_experts),
            {"router", "num_experts"}};
  }
  if (config.router->num_selected_patches > config.num_patches()) {
    return {fmt::format("an expert cannot select {0} of {1} patches; choose at most {1}",
                        config.router->num_selected_patches, config.num_patches()),
            {"router.num_selected_patches", "patch_size", "image_size"}};
  }
  return kept_setting_problem(config.router->kept_experts, config.num_experts,
                              "router.kept_experts");
}

PMoE::PMoE(PMoEConfig config, uint64_t seed) : OneLayerModel(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  mixture_ = register_module("mixture", std::make_shared<torch::nn::Module>());
  experts = nn::PatchExperts(config_, generator);
  if (!config_.router) {
    mixture_->register_module("experts", experts);
    return;
  }
  const PMoERouterConfig& router = *config_.router;
  if (!router.kept_experts.empty()) experts->keep(router.kept_experts);
  moe = mixture_->register_module(
      "moe", nn::MoELayer(patch_router(router, config_.num_experts, config_.width(),
                                       config_.num_patches(), PrunedSelection::zero),
                          experts.ptr(), generator));
  const torch::NoGradGuard no_grad;
  moe->router->weight.normal_(0.0, router.init_std, generator);
}

ModelOutput PMoE::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  check_input_shape(*this, config_.name, "images", images_BCHW);
  return forward_patches(nn::patches_of(images_BCHW, config_.patch_size), random);
}

ModelOutput PMoE::forward_patches(const at::Tensor& x_Bnd, const at::Generator& random) const {
  const at::Tensor x_Td = x_Bnd.flatten(0, 1);
  ModelOutput out;
  at::Tensor y_To;
  if (moe.is_empty()) {
    const Routing all = routing_to_one_expert(x_Td.size(0), x_Td.device());
    y_To = experts.ptr()->compute(x_Td, all, random).outputs;
  } else {
    nn::MoEOutput routed = moe->forward(x_Td, random);
    y_To = routed.y_Td;
    out.routings.push_back(std::move(routed));
  }
  const at::Tensor f_Bo = y_To.view({x_Bnd.size(0), config_.num_patches(), y_To.size(1)}).sum(1) /
                          config_.divisor_value();
  out.pre_logits = f_Bo;
  out.logits = f_Bo.size(1) == 1 ? at::cat({f_Bo / 2, -f_Bo / 2}, 1) : f_Bo;
  return out;
}

std::map<std::string, at::Tensor> PMoE::weight_directions() const {
  std::map<std::string, at::Tensor> found = {{"neuron", experts->w.detach().transpose(1, 2)}};
  if (!moe.is_empty()) found["router"] = router_directions();
  return found;
}

std::optional<torch::jit::Module> PMoE::torchscript(const script::Context& context) const {
  const std::vector<int64_t> shape = {config_.width()};
  const bool alone = moe.is_empty();
  const script::Children layers = {
      alone ? std::pair("experts", script::make_experts(context, *experts, shape))
            : std::pair("moe", script::make_moe_layer(context, *moe, shape))};
  const std::string source = fmt::format(
      kPatchMixture, fmt::arg("width", config_.patch_size.width),
      fmt::arg("height", config_.patch_size.height), fmt::arg("patches", config_.num_patches()),
      fmt::arg("divisor", script::literal(config_.divisor_value())),
      fmt::arg("layer",
               alone ? "self.experts.one_by_one(x, [x.size(0)])" : "self.moe.forward(x, x)"));
  return script::make_module(
      context, "PMoE", *this,
      {{"mixture", script::make_module(context, "PatchMixture", *mixture_, layers, source)}},
      script::input_check_source(input_shape()) + "    f = self.mixture.forward(images)\n" +
          return_logits(config_.num_classes));
}

ConfigProblem config_problem(const WrnPMoEConfig& config) {
  if (nn::wide_channels(0, config.widen_factor) < 1) {
    return {fmt::format("widen_factor {} leaves no channel; choose 1", config.widen_factor),
            {"widen_factor"}};
  }
  return config.moe ? mixture_problem(config) : ConfigProblem();
}

WrnPMoE::WrnPMoE(WrnPMoEConfig config, uint64_t seed) : OneLayerModel(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  trunk = register_module(
      "trunk", nn::WideResNet(nn::FeatureMapShape{config_.channels, config_.image_size},
                              config_.num_blocks, config_.widen_factor, !config_.moe, generator));
  if (config_.moe) {
    experts = nn::MapExperts(expert_options(config_), generator);
    moe = register_module("moe", nn::MoELayer(router_options(config_), experts.ptr(), generator));
    const torch::NoGradGuard no_grad;
    moe->router->weight.normal_(0.0, config_.moe->router.init_std, generator);
  }
  norm = register_module("norm",
                         nn::BatchNorm1d(nn::keras_batch_norm_options(trunk->maps().channels)));
  head = register_module(
      "head", nn::make_linear(trunk->maps().channels, outputs_of(config_.num_classes), generator));
}

at::Tensor WrnPMoE::all_channels(const at::Tensor& y_Td) const {
  const int64_t each = experts->options().num_outputs, patch = experts->options().patch;
  const auto present = static_cast<int64_t>(moe->kept().size());
  const at::Tensor y_TKop = y_Td.view({y_Td.size(0), present, each, patch * patch});
  if (!moe->is_pruned()) return y_TKop.flatten(1, 2);
  const at::Tensor zeros =
      at::zeros({y_Td.size(0), config_.moe->num_experts, each, patch * patch}, y_Td.options());
  return zeros.index_copy(1, index_on(y_Td.device(), moe->kept()), y_TKop).flatten(1, 2);
}

ModelOutput WrnPMoE::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  check_input_shape(*this, config_.name, "images", images_BCHW);
  const at::Tensor map_BCSS = trunk->forward(images_BCHW);
  ModelOutput out;
  at::Tensor y_TCp = map_BCSS.flatten(2);  // The whole map is one patch where nothing is routed.
  if (!moe.is_empty()) {
    nn::MoEOutput routed =
        moe->forward(nn::patches_of(map_BCSS, experts->options().patch).flatten(0, 1), random);
    y_TCp = all_channels(routed.y_Td);
    out.routings.push_back(std::move(routed));
  }
  const at::Tensor active_TC = norm->forward(y_TCp).relu_().mean(2);
  const int64_t patches = std::max<int64_t>(1, tokens_per_image());
  out.pre_logits = active_TC.view({images_BCHW.size(0), patches, active_TC.size(1)}).mean(1);
  const at::Tensor f = head->forward(out.pre_logits);
  out.logits = config_.num_classes == 2 ? at::cat({f / 2, -f / 2}, 1) : f;
  return out;
}

void WrnPMoE::reset_head(int64_t classes) {
  const at::TensorOptions options = head->weight.options().requires_grad(false);
  torch::nn::Linear fresh(trunk->maps().channels, outputs_of(classes));
  fresh->weight.set_data(at::zeros({outputs_of(classes), trunk->maps().channels}, options));
  fresh->bias.set_data(at::zeros({outputs_of(classes)}, options));
  head = replace_module("head", fresh);
  config_.num_classes = classes;
}

std::optional<torch::jit::Module> WrnPMoE::torchscript(const script::Context& context) const {
  const int64_t all = trunk->maps().channels;
  const std::shared_ptr<nn::WideResNetImpl> network = trunk.ptr();
  const auto forward = [&](const at::Tensor& images) { return network->forward(images); };
  script::Children children = {
      {"trunk", script::make_traced(context, *network, forward, input_shape())},
      {"norm", script::make_batch_norm(context, *norm)},
      {"head", script::make_linear(context, *head)}};
  std::string source =
      script::input_check_source(input_shape()) + "    y = self.trunk.forward(images)\n";
  if (moe.is_empty()) {
    source += kMap;
  } else {
    const int64_t patch = experts->options().patch, each = experts->options().num_outputs;
    children.emplace_back("moe", script::make_moe_layer(context, *moe, {all * patch * patch}));
    source += fmt::format(kPatches, fmt::arg("patch", patch), fmt::arg("positions", patch * patch));
    if (moe->is_pruned()) {
      std::string channels;
      for (const int64_t e : moe->kept()) {
        for (int64_t c = e * each; c < (e + 1) * each; ++c) channels += fmt::format("{}, ", c);
      }
      source += fmt::format(kPruned, fmt::arg("channels", channels), fmt::arg("all", all));
    }
  }
  source += fmt::format(kRest, fmt::arg("all", all),
                        fmt::arg("patches", std::max<int64_t>(1, tokens_per_image())));
  return script::make_module(context, "WrnPMoE", *this, children,
                             source + return_logits(config_.num_classes));
}

}  // namespace moesaic
