// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/clusters.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/suggestions.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/script.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/ops/filter_experts.h"
#include "moesaic/parallel/process_group.h"

namespace moesaic::nn {
namespace {

// Children are networks of their own.
constexpr char kNetworkLoop[] = R"(
def one_by_one(self, rows: Tensor, counts: List[int]) -> Tensor:
    parts = rows.split(counts)
    outputs = [rows.new_zeros([0, {}])]
)";
constexpr char kOneNetwork[] = R"(    if counts[{0}] > 0:
        outputs.append(getattr(self, "{0}").forward(parts[{0}]))
)";

}  // namespace

ImageExpertsImpl::ImageExpertsImpl(const std::string& network, int64_t experts,
                                   const ImageNetworkOptions& options,
                                   const at::Generator& generator) {
  for (int64_t e = 0; e < experts; ++e) {
    networks_.push_back(
        register_module(std::to_string(e), make_image_network(network, options, generator)));
  }
}

ExpertRows ImageExpertsImpl::compute(const at::Tensor& rows_ACHW, const Routing& routing,
                                     const at::Generator&) {
  at::Tensor rows_K = routing.offsets.is_meta() ? at::ones({num_experts()}, at::kLong)
                                                : routing.offsets.diff().to(at::kCPU, at::kLong);
  // Where another process has rows, the experts' batch norms need this one too.
  if (const auto process_group = batch_shard().process_group())
    process_group->all_reduce(rows_K, Traffic::batch_norm);
  const at::Tensor idle = rows_K.eq(0);
  const bool all_idle = idle.all().item<bool>();
  return for_each_expert(rows_ACHW, routing, [&](int64_t slot, const at::Tensor& own) {
    const bool is_idle = idle[slot].item<bool>();
    // One runs for the shapes, and where its rows travel so that all processes have gradients.
    if (is_idle && !(all_idle && slot + 1 == num_experts())) return ExpertRows{};
    const auto& expert = network(slot);
    if (is_idle) expert->eval();  // No rows have no moments.
    const at::Tensor features = expert->features(own);
    const ExpertRows rows{expert->head->forward(features), features};
    if (is_idle) expert->train(is_training());
    return rows;
  });
}

void ImageExpertsImpl::set_networks(Networks networks, int64_t first) {
  for (const std::string& name : named_children().keys()) unregister_module(name);
  networks_ = std::move(networks);
  for (const auto& network : networks_) {
    register_module(std::to_string(first++), network);
    network->train(is_training());  // While it was no child it was not told.
  }
}

void ImageExpertsImpl::keep(const std::vector<int64_t>& slots) {
  Networks kept;
  for (const int64_t slot : slots) kept.push_back(network(slot));
  set_networks(std::move(kept));
}

void ImageExpertsImpl::keep_local(const std::vector<int64_t>& slots) {
  all_ = networks_;
  set_networks({all_.begin() + slots.front(), all_.begin() + slots.back() + 1}, slots.front());
  for (const auto& network : all_) {
    if (std::find(networks_.begin(), networks_.end(), network) != networks_.end()) continue;
    for (const at::Tensor& tensor : tensors_of(*network)) {
      replace_value(tensor, at::empty({0}, tensor.options()));
    }
  }
}

void ImageExpertsImpl::gather(const ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  for (size_t own = 0; own < networks_.size(); ++own) {
    const std::vector<at::Tensor> tensors = tensors_of(*networks_[own]);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor of_group =
          group.all_gather(tensors[i].detach().unsqueeze(0), Traffic::other);
      for (int64_t member = 0; member < group.size(); ++member) {
        const auto place = static_cast<size_t>(member) * networks_.size() + own;
        replace_value(tensors_of(*all_[place])[i], of_group[member].clone());
      }
    }
  }
  set_networks(std::exchange(all_, {}));
}

ExpertMatrices ImageExpertsImpl::matrices(int64_t slot, const ParameterReader& values) const {
  ExpertMatrices matrices;
  for (const at::Tensor& parameter : network(slot)->parameters()) {
    if (parameter.dim() < 2) continue;  // A bias, or the scale of a normalisation.
    matrices.hidden.push_back(values(parameter).flatten(1));
  }
  return matrices;
}

ExpertsScript ImageExpertsImpl::script_source() const {
  std::string source = fmt::format(kNetworkLoop, num_outputs());
  for (int64_t e = 0; e < num_experts(); ++e) source += fmt::format(kOneNetwork, e);
  return {source + "    return torch.cat(outputs)\n"};
}

FilterExpertsImpl::FilterExpertsImpl(const ClusterMoEConfig& config, int64_t experts,
                                     const at::Generator& generator)
    : num_patches_(config.num_patches),
      num_outputs_(config.has_scalar_output ? 1 : config.num_classes),
      activation_(activation_from_name(config.activation)) {
  w = register_parameter("w", torch::empty({experts, config.width, config.num_filters}));
  if (config.bias) b = register_parameter("b", torch::empty({experts, config.num_filters}));
  const torch::NoGradGuard no_grad;
  const double bound = config.init_scale / std::sqrt(static_cast<double>(config.width));
  for (const at::Tensor& parameter : parameters()) {
    config.init == "normal" ? parameter.normal_(0.0, config.init_scale, generator)
                            : parameter.uniform_(-bound, bound, generator);
  }
}

ExpertRows FilterExpertsImpl::rows_of(const at::Tensor& x_TPd, const Routing& routing) const {
  const NoAutocastGuard no_autocast;
  const at::Tensor bias =
      b.defined() ? b : at::zeros({num_experts(), w.size(2)}, w.options().requires_grad(false));
  return {filter_experts(x_TPd, routing, {w, bias}, num_outputs_, activation_), {}};
}

// Outputs sum their filters over the patches [A, P, d].
ExpertsScript FilterExpertsImpl::script_source() const {
  using Names = std::vector<std::string>;
  return {script::expert_loop_source(
      num_outputs_, b.defined() ? Names{"w", "b"} : Names{"w"},
      fmt::format("hidden = torch.matmul(x, w) + {}", b.defined() ? "b" : "0.0"),
      fmt::format("{}.unflatten(2, [{}, -1]).sum([1, 3])", script::activation_source(activation_),
                  num_outputs_))};
}

}  // namespace moesaic::nn

namespace moesaic {
namespace {

/// Returns how many of `experts` experts pruning kept.
template <class Router>
int64_t present_experts(const std::optional<Router>& router, int64_t experts) {
  const bool pruned = router && !router->kept.empty();
  return pruned ? static_cast<int64_t>(router->kept.size()) : experts;
}

/// Returns what is wrong with a router of images, or with several experts without one.
template <class Router>
ConfigProblem router_problem(const std::optional<Router>& config, int64_t experts) {
  if (!config) {
    if (experts == 1) return {};
    return {fmt::format("{} experts need a router; give one, or set num_experts to 1", experts),
            {"num_experts", "router"}};
  }
  const bool pruned = !config->kept.empty();
  const RouterContext place{
      .num_experts = experts, .group_size = config->group_size, .is_pruned = pruned};
  for (const auto check : {routing_problem, capacity_problem}) {
    ConfigProblem problem = check(*config, place);
    if (!problem.empty()) return problem;
  }
  const bool whole = config->gate == Gate::softmax_all || config->gate == Gate::logit;
  if (!config->gate_noise && !(config->is_token_choice() && whole)) {
    return {fmt::format("router.gate_noise false is for the router {} with the gate 'softmax_all' "
                        "or 'logit'",
                        kTokenChoice),
            {"router.gate_noise", "router.gate", "router.name"}};
  }
  if (!config->gate_noise && config->noise_in_evaluation) {
    return {"router.gate_noise false is about training; set router.noise_in_evaluation to false",
            {"router.noise_in_evaluation", "router.gate_noise"}};
  }
  if (!pruned) return {};
  ConfigProblem mean_replacement = mean_replacement_problem(
      config->mean_replacement, *config, place.router, place.router + "mean_replacement");
  if (!mean_replacement.empty()) return mean_replacement;
  return kept_setting_problem(config->kept, experts, place.router + "kept_experts");
}

/// Returns the options of such a router for inputs of `width` values per image.
nn::RouterOptions router_options(const ImageTokenRouterConfig& config, int64_t width,
                                 int64_t experts) {
  nn::RouterOptions options;
  options.width = width;
  options.num_experts = experts;
  options.rule = route_options(config, config.group_size);
  const bool pruned = !config.kept.empty() && static_cast<int64_t>(config.kept.size()) < experts;
  if (pruned) options.rule.kept = config.kept;
  options.noise = {noise_kind_from_name(config.noise), config.noise_scale};
  if (config.noise_in_evaluation) options.evaluation_seed = 0;
  options.gate_noise = config.gate_noise;
  return options;
}

/// Returns a layer whose tokens are whole images and whose router of `width` values per image
/// starts at 0.
nn::MoELayer image_token_layer(const ImageTokenRouterConfig& router, int64_t width, int64_t count,
                               std::shared_ptr<nn::Experts> experts,
                               const at::Generator& generator) {
  nn::MoELayer layer(router_options(router, width, count), std::move(experts), generator);
  if (router.mean_replacement && layer->is_pruned()) layer->add_replacement_outputs();
  const torch::NoGradGuard no_grad;
  layer->router->weight.zero_();
  return layer;
}

/// Returns the paths of the settings of a router of images and of the network's sizes.
SettingPaths image_token_paths(std::string image_size, std::string channels = {}) {
  return {.router_name = "router.name",
          .router_noise = "router.noise_scale",
          .router_noise_kind = "router.noise",
          .rows_per_expert = "router.num_selected_tokens",
          .capacity_factor = "router.dispatcher.capacity_factor",
          .evaluation_capacity_factor = "router.dispatcher.evaluation_capacity_factor",
          .group_size = "router.group_size",
          .classes = "num_classes",
          .image_size = std::move(image_size),
          .channels = std::move(channels),
          .kept_experts = "router.kept_experts"};
}

/// Returns the width of the router's input: that of a patch, or of a piece of a patch.
int64_t router_width(const ClusterMoEConfig& config) {
  return config.router && config.router->width > 0 ? config.router->width : config.width;
}

/// Returns the layer as a part of the network's TorchScript, or its only expert where there is
/// none.
script::Children experts_of(const script::Context& context, const nn::MoELayer& moe,
                            const nn::Experts& experts, const std::vector<int64_t>& shape) {
  return {moe.is_empty() ? std::pair("experts", script::make_experts(context, experts, shape))
                         : std::pair("moe", script::make_moe_layer(context, *moe, shape))};
}

constexpr char kAlone[] = R"(
    inputs = images.squeeze(1)
    y = self.experts.one_by_one(inputs, [inputs.size(0)])
)";
// The router sees the sum of the patches, or of their pieces.
constexpr char kRouted[] = R"(
    inputs = images.squeeze(1)
    y = self.moe.forward(inputs.reshape([inputs.size(0), {pieces}, {width}]).sum([1]), inputs)
)";

constexpr char kNetworkAlone[] = R"(
    return self.experts.one_by_one(images, [images.size(0)])
)";
// The router sees the sum of squares of the image, and their number for the bias.
constexpr char kSquares[] = R"(
    squares = images.reshape([-1, {channels}, {count}, {side}, {count}, {side}])
    sums = squares.sum([2, 4]).flatten(1)
    sums = torch.cat([sums, {count} * {count} * torch.ones_like(sums[:, :1])], 1)
    return self.moe.forward(sums, images)
)";

}  // namespace

ConfigProblem config_problem(const ClusterMoEConfig& config) {
  if (config.has_scalar_output && config.num_classes != 2) {
    return {fmt::format("a scalar output tells 2 classes apart, found {}", config.num_classes),
            {"has_scalar_output", "num_classes"}};
  }
  if (!config.has_scalar_output && config.num_filters % config.num_classes != 0) {
    return {
        fmt::format("{} filters cannot be divided equally among {} classes; the next number is {}",
                    config.num_filters, config.num_classes,
                    (config.num_filters / config.num_classes + 1) * config.num_classes),
        {"num_filters", "num_classes"}};
  }
  if (config.width % router_width(config) != 0) {
    return {fmt::format("a patch of {} cannot be cut into pieces of {}; choose {}", config.width,
                        router_width(config), nearest_divisor(config.width, router_width(config))),
            {"router", "width"}};
  }
  return router_problem(config.router, config.num_experts);
}

ClusterMoE::ClusterMoE(ClusterMoEConfig config, uint64_t seed) : OneLayerModel(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  experts =
      nn::FilterExperts(config_, present_experts(config_.router, config_.num_experts), generator);
  if (!config_.router) {
    register_module("experts", experts);
    return;
  }
  moe = register_module("moe", image_token_layer(*config_.router, router_width(config_),
                                                 config_.num_experts, experts.ptr(), generator));
}

ModelOutput ClusterMoE::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  check_input_shape(*this, config_.name, "inputs", images_BCHW);
  const at::Tensor x_TPd = images_BCHW.squeeze(1);
  if (moe.is_empty()) {
    const Routing all = routing_to_one_expert(x_TPd.size(0), x_TPd.device());
    const at::Tensor y = experts->compute(x_TPd, all, random).outputs;
    return {logits_of(y), y, {}};
  }
  const nn::MoEOutput out = moe->forward(router_input(images_BCHW), x_TPd, random);
  return {logits_of(out.y_Td), out.y_Td, {out}};
}

SettingPaths ClusterMoE::setting_paths() const {
  return image_token_paths("num_patches");
}

at::Tensor ClusterMoE::patch_sums(const at::Tensor& images_BCHW) const {
  const int64_t width = router_width(config_);
  return images_BCHW
      .reshape({images_BCHW.size(0), config_.num_patches * config_.width / width, width})
      .sum(1);
}

at::Tensor ClusterMoE::router_input(const at::Tensor& images_BCHW) {
  const bool wants_gradient = at::GradMode::is_enabled() && images_BCHW.requires_grad();
  if (wants_gradient || c10::InferenceMode::is_enabled() || images_BCHW.is_inference()) {
    return patch_sums(images_BCHW);
  }
  const uint64_t version = images_BCHW._version();
  if (!cache_.inputs.defined() || !cache_.inputs.is_same(images_BCHW) ||
      cache_.version != version) {
    cache_ = {images_BCHW, patch_sums(images_BCHW), version};
  }
  return cache_.sums;
}

std::map<std::string, at::Tensor> ClusterMoE::weight_directions() const {
  std::map<std::string, at::Tensor> directions = {{"expert", experts->w.detach().transpose(1, 2)}};
  if (!moe.is_empty()) directions["router"] = moe->router->weight.detach().unsqueeze(1);
  return directions;
}

std::optional<torch::jit::Module> ClusterMoE::torchscript(const script::Context& context) const {
  const int64_t width = router_width(config_);
  const std::string y =
      moe.is_empty() ? kAlone
                     : fmt::format(kRouted, fmt::arg("width", width),
                                   fmt::arg("pieces", config_.num_patches * config_.width / width));
  return script::make_module(
      context, "ClusterMoE", *this,
      experts_of(context, moe, *experts, {config_.num_patches, config_.width}),
      script::input_check_source(input_shape()) + y +
          (config_.has_scalar_output ? "    return torch.cat([torch.zeros_like(y), y], 1)\n"
                                     : "    return y\n"));
}

ConfigProblem config_problem(const ImageMoEConfig& config) {
  if (config.router && config.image_size % config.router->patch_size != 0) {
    return {fmt::format("images of {0} x {0} cannot be cut into squares of {1} x {1}; choose {2}",
                        config.image_size, config.router->patch_size,
                        nearest_divisor(config.image_size, config.router->patch_size)),
            {"router.patch_size", "image_size"}};
  }
  return router_problem(config.router, config.num_experts);
}

ImageMoE::ImageMoE(ImageMoEConfig config, uint64_t seed) : OneLayerModel(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  experts = nn::ImageExperts(config_.expert, present_experts(config_.router, config_.num_experts),
                             nn::ImageNetworkOptions{config_.channels, config_.image_size,
                                                     config_.num_classes, config_.width},
                             generator);
  if (!config_.router) {
    register_module("experts", experts);
    return;
  }
  const int64_t side = config_.router->patch_size;
  const int64_t width = config_.channels * side * side + 1;  // A square's values, and the bias.
  moe = register_module("moe", image_token_layer(*config_.router, width, config_.num_experts,
                                                 experts.ptr(), generator));
}

ModelOutput ImageMoE::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  check_input_shape(*this, config_.name, "images", images_BCHW);
  if (moe.is_empty()) {
    const at::Tensor x = experts->network(0)->features(images_BCHW);
    return {experts->network(0)->head->forward(x), x, {}};
  }
  const int64_t side = config_.router->patch_size, count = config_.image_size / side;
  const at::Tensor sums =
      images_BCHW.reshape({-1, config_.channels, count, side, count, side}).sum({2, 4}).flatten(1);
  // The bias counts once for each square.
  const at::Tensor squares = at::full({sums.size(0), 1}, count * count, sums.options());
  const nn::MoEOutput out = moe->forward(at::cat({sums, squares}, 1), images_BCHW, random);
  return {out.y_Td, out.embedding_Td, {out}};
}

SettingPaths ImageMoE::setting_paths() const {
  return image_token_paths("image_size", "channels");
}

void ImageMoE::reset_head(int64_t classes) {
  for (int64_t slot = 0; slot < experts->num_experts(); ++slot) {
    experts->network(slot)->reset_head(classes);
  }
  if (!moe.is_empty() && moe->replacement_outputs.defined()) {
    moe->replacement_outputs.set_data(
        at::zeros({moe->replacement_outputs.size(0), classes}, moe->replacement_outputs.options()));
  }
  config_.num_classes = classes;
}

std::optional<torch::jit::Module> ImageMoE::torchscript(const script::Context& context) const {
  std::string y = kNetworkAlone;
  if (!moe.is_empty()) {
    const int64_t side = config_.router->patch_size;
    y = fmt::format(kSquares, fmt::arg("channels", config_.channels),
                    fmt::arg("count", config_.image_size / side), fmt::arg("side", side));
  }
  return script::make_module(context, "ImageMoE", *this,
                             experts_of(context, moe, *experts, input_shape()),
                             script::input_check_source(input_shape()) + y);
}

}  // namespace moesaic
