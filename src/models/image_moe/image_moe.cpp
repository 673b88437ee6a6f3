// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/image_moe/image_moe.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "../input_shape.h"
#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"

namespace moesaic {
namespace {

nn::ImageNetworkOptions image_expert_options(const ImageMoEConfig& config) {
  return {config.channels, config.image_size, config.classes, config.width};
}

/// Numbers that the router sees of an image: a square's, and one for the bias.
int64_t image_router_width(const ImageMoEConfig& config) {
  const int64_t side = config.router->patch_size;
  return config.channels * side * side + 1;
}

nn::RouterOptions image_router_options(const ImageMoEConfig& config) {
  TokenChoiceOptions rule;
  rule.k = 1;
  rule.gate = gate_from_name(config.router->gate);
  nn::RouterOptions options;
  options.width = image_router_width(config);
  options.experts = config.experts;
  options.rule = rule;
  options.noise = {noise_kind_from_name(config.router->noise), config.router->noise_scale};
  return options;
}

/// Where the rows of each expert begin, and end; without numbers, as if all got as many.
std::vector<int64_t> row_offsets(const Routing& routing) {
  const int64_t experts = routing.experts();
  std::vector<int64_t> offsets;
  if (routing.offsets.is_meta()) {
    for (int64_t e = 0; e <= experts; ++e) offsets.push_back(routing.tokens() * e / experts);
    return offsets;
  }
  const at::Tensor numbers = routing.offsets.to(at::kCPU, at::kLong);
  const auto* const first = numbers.const_data_ptr<int64_t>();
  return {first, first + experts + 1};
}

/// To bring rows back as they are.
Routing without_gates(Routing routing) {
  routing.gate = at::ones_like(routing.gate);
  return routing;
}

}  // namespace

ConfigProblem config_problem(const ImageMoEConfig& config) {
  if (config.router && config.image_size % config.router->patch_size != 0) {
    return {fmt::format("images of {0} x {0} cannot be cut into squares of {1} x {1}",
                        config.image_size, config.router->patch_size),
            {"router.patch_size", "image_size"}};
  }
  if (!config.router && config.experts != 1) {
    return {fmt::format("{} experts need a router; without one 'experts' is 1", config.experts),
            {"experts", "router"}};
  }
  return {};
}

ImageMoE::ImageMoE(ImageMoEConfig config, uint64_t seed) : config_(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  torch::nn::ModuleList list;
  for (int64_t e = 0; e < config_.experts; ++e) {
    experts.push_back(
        nn::make_image_network(config_.expert, image_expert_options(config_), generator));
    list->push_back(experts.back());
  }
  register_module("experts", list);
  if (!config_.router) return;
  router = register_module("router", nn::Router(image_router_options(config_), generator));
  const torch::NoGradGuard no_grad;
  router->weight.zero_();
}

// Images stay channels first: with channels last, convolutions of a few channels have been seen
// to write outside of their memory on more than one thread (LibTorch 2, oneDNN).
ModelOutput ImageMoE::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  check_input_shape(*this, config_.name, "images", images_BCHW);
  if (!config_.router) {
    const at::Tensor x = experts[0]->features(images_BCHW);
    return {experts[0]->head->forward(x), x, {}};
  }
  nn::RouterOutput routed = router->forward(square_sums(images_BCHW), random);
  const Routing& routing = routed.routing;
  const at::Tensor rows_ACHW = dispatch(images_BCHW.flatten(1), routing).view_as(images_BCHW);
  const std::vector<int64_t> offsets = row_offsets(routing);
  std::vector<at::Tensor> features, outputs;
  for (size_t e = 0; e < experts.size(); ++e) {
    const bool last_chance = e + 1 == experts.size() && features.empty();  // for the shapes
    if (offsets[e] == offsets[e + 1] && !last_chance) continue;
    const at::Tensor own = rows_ACHW.slice(0, offsets[e], offsets[e + 1]);
    features.push_back(experts[e]->features(own));
    outputs.push_back(experts[e]->head->forward(features.back()));
  }
  ModelOutput output;
  output.logits = combine(at::cat(outputs), routing);
  output.pre_logits = combine(at::cat(features), without_gates(routing));
  RoutingRecord record;
  record.logits_TE = routed.logits_TE;
  record.noisy_logits_TE = routed.noisy_logits_TE;
  if (random.defined() && config_.router->noise == "gaussian") {
    record.noise_std = gaussian_noise_std(router->options().noise, config_.experts);
  }
  record.routing = std::move(routed.routing);
  for (int64_t e = 0; e < config_.experts; ++e) record.kept.push_back(e);
  output.routings.push_back(std::move(record));
  return output;
}

at::Tensor ImageMoE::square_sums(const at::Tensor& images_BCHW) const {
  const int64_t side = config_.router->patch_size, count = config_.image_size / side;
  const at::Tensor sums =
      images_BCHW.reshape({-1, config_.channels, count, side, count, side}).sum({2, 4}).flatten(1);
  // The bias counts once for each square.
  const at::Tensor squares = at::full({sums.size(0), 1}, count * count, sums.options());
  return at::cat({sums, squares}, 1);
}

nlohmann::ordered_json ImageMoE::config() const {
  return to_json(config_);
}

void ImageMoE::reset_head(int64_t classes) {
  for (const auto& expert : experts) expert->reset_head(classes);
  config_.classes = classes;
}

std::vector<int64_t> ImageMoE::input_shape() const {
  return {config_.channels, config_.image_size, config_.image_size};
}

double ImageMoE::flops_per_image(const RowsPerToken&) const {
  const double routing =
      config_.router ? 2.0 * static_cast<double>(image_router_width(config_) * config_.experts)
                     : 0.0;
  return routing + experts[0]->flops();
}

}  // namespace moesaic
