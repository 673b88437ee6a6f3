// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/script.h"
#include "moesaic/papers/clusters/image_moe.h"

namespace moesaic {
namespace {

nn::ImageNetworkOptions image_expert_options(const ImageMoEConfig& config) {
  return {config.channels, config.image_size, config.classes, config.width};
}

/// Returns the width of the router's input: the values of a square, and 1 for the bias; 0
/// where there is no router.
int64_t image_router_width(const ImageMoEConfig& config) {
  if (!config.router) return 0;
  const int64_t side = config.router->patch_size;
  return config.channels * side * side + 1;
}

}  // namespace

ConfigProblem config_problem(const ImageMoEConfig& config) {
  if (config.router && config.image_size % config.router->patch_size != 0) {
    return {fmt::format("images of {0} x {0} cannot be cut into squares of {1} x {1}",
                        config.image_size, config.router->patch_size),
            {"router.patch_size", "image_size"}};
  }
  return router_problem(router_or_null(config.router), config.experts);
}

ImageMoE::ImageMoE(ImageMoEConfig config, uint64_t seed) : config_(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  experts = nn::ImageExperts(config_.expert,
                             present_experts(router_or_null(config_.router), config_.experts),
                             image_expert_options(config_), generator);
  set_layer(experts.ptr(), router_or_null(config_.router), image_router_width(config_),
            config_.experts, generator);
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

at::Tensor ImageMoE::square_sums(const at::Tensor& images_BCHW) const {
  const int64_t side = config_.router->patch_size, count = config_.image_size / side;
  const at::Tensor sums =
      images_BCHW.reshape({-1, config_.channels, count, side, count, side}).sum({2, 4}).flatten(1);
  // The bias counts once for each square.
  const at::Tensor squares = at::full({sums.size(0), 1}, count * count, sums.options());
  return at::cat({sums, squares}, 1);
}

void ImageMoE::reset_head(int64_t classes) {
  experts->reset_heads(classes);
  if (!moe.is_empty() && moe->stand_in.defined()) {
    moe->stand_in.set_data(at::zeros({moe->stand_in.size(0), classes}, moe->stand_in.options()));
  }
  config_.classes = classes;
}

std::vector<int64_t> ImageMoE::input_shape() const {
  return {config_.channels, config_.image_size, config_.image_size};
}

SettingPaths ImageMoE::setting_paths() const {
  SettingPaths paths = ImageTokenModel::setting_paths();
  paths.image_size = "image_size";
  paths.channels = "channels";
  return paths;
}

namespace {

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

std::optional<torch::jit::Module> ImageMoE::torchscript() const {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const std::string entrance = script::entrance(input_shape());
  if (moe.is_empty()) {
    return script::make_module(unit, "ImageMoE", *this,
                               {{"experts", script::make_experts(unit, *experts, input_shape())}},
                               entrance + kNetworkAlone);
  }
  const int64_t side = config_.router->patch_size;
  return script::make_module(
      unit, "ImageMoE", *this, {{"moe", script::make_moe_layer(unit, *moe, input_shape())}},
      entrance + fmt::format(kSquares, fmt::arg("channels", config_.channels),
                             fmt::arg("count", config_.image_size / side), fmt::arg("side", side)));
}

}  // namespace moesaic
