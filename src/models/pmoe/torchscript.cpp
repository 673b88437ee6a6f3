// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>

#include "moesaic/models/pmoe/pmoe.h"
#include "moesaic/nn/script.h"

namespace moesaic {
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
