// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>

#include "moesaic/models/image_moe/image_moe.h"
#include "moesaic/nn/script.h"

namespace moesaic {
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
