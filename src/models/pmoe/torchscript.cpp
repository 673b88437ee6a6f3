// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>

#include "moesaic/models/pmoe/pmoe.h"
#include "moesaic/nn/script.h"

namespace moesaic {
namespace {

constexpr char kForward[] = R"(
    patches = images.unflatten(3, [-1, {width}]).unflatten(2, [-1, {height}])
    x = patches.permute([0, 2, 4, 1, 3, 5]).flatten(3).flatten(0, 2)
    y = {layer}
    f = y.view([images.size(0), {patches}, y.size(1)]).sum([1]) / {divisor}
)";

}  // namespace

std::optional<torch::jit::Module> PMoE::torchscript() const {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const std::vector<int64_t> shape = {config_.width()};
  const bool alone = moe.is_empty();
  const script::Children children = {
      alone ? std::pair("experts", script::make_experts(unit, *experts, shape))
            : std::pair("moe", script::make_moe_layer(unit, *moe, shape))};
  const std::string source =
      script::entrance(input_shape()) +
      fmt::format(kForward, fmt::arg("width", config_.patch_size.width),
                  fmt::arg("height", config_.patch_size.height),
                  fmt::arg("patches", config_.patches()),
                  fmt::arg("divisor", script::literal(divisor())),
                  fmt::arg("layer", alone ? "self.experts.one_by_one(x, [x.size(0)])"
                                          : "self.moe.forward(x, x)")) +
      (config_.classes == 2 ? "    return torch.cat([f / 2, -f / 2], 1)\n" : "    return f\n");
  return script::make_module(unit, "PMoE", *this, children, source);
}

}  // namespace moesaic
