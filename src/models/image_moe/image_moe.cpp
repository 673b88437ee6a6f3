// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/image_moe/image_moe.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "../input_shape.h"
#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"

namespace moesaic {
namespace {

nn::ImageNetworkOptions image_expert_options(const ImageMoEConfig& config) {
  return {config.channels, config.image_size, config.classes, config.width};
}

/// Returns the width of the router's input: the values of a square, and 1 for the bias.
int64_t image_router_width(const ImageMoEConfig& config) {
  const int64_t side = config.router->patch_size;
  return config.channels * side * side + 1;
}

int64_t present_experts(const ImageMoEConfig& config) {
  return config.router ? present_experts(*config.router, config.experts) : config.experts;
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
  return config.router ? router_problem(*config.router, config.experts) : ConfigProblem{};
}

ImageMoE::ImageMoE(ImageMoEConfig config, uint64_t seed) : config_(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  experts = nn::ImageExperts(config_.expert, present_experts(config_),
                             image_expert_options(config_), generator);
  if (!config_.router) {
    register_module("experts", experts);
    return;
  }
  const nn::RouterOptions router =
      router_options(*config_.router, image_router_width(config_), config_.experts);
  moe = register_module("moe", nn::MoELayer(router, experts.ptr(), generator));
  const torch::NoGradGuard no_grad;
  moe->router->weight.zero_();
}

ModelOutput ImageMoE::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  check_input_shape(*this, config_.name, "images", images_BCHW);
  if (moe.is_empty()) {
    const at::Tensor x = experts->network(0)->features(images_BCHW);
    return {experts->network(0)->head->forward(x), x, {}};
  }
  const nn::MoEOutput out = moe->forward(square_sums(images_BCHW), images_BCHW, random);
  return {out.y_Td, out.embedding_Td, {out}};
}

void ImageMoE::set_first_sample_index(int64_t image) {
  if (!moe.is_empty()) moe->router->set_first_sample_index(image);
}

std::vector<MoEBlock> ImageMoE::moe_blocks() const {
  if (moe.is_empty()) return {};
  return {{.block = 0, .layer = moe}};
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
  ImageMoEConfig config = config_;
  if (!moe.is_empty()) config.router->kept_experts = nn::kept_experts(moe->options().rule);
  return to_json(config);
}

void ImageMoE::reset_head(int64_t classes) {
  experts->reset_heads(classes);
  config_.classes = classes;
}

std::vector<int64_t> ImageMoE::input_shape() const {
  return {config_.channels, config_.image_size, config_.image_size};
}

double ImageMoE::flops_per_image(const RowsPerToken& rows_per_token) const {
  if (moe.is_empty()) return experts->flops_per_row();
  return layer_flops({.block = 0, .layer = moe}, tokens_per_image(), rows_per_token);
}

}  // namespace moesaic
