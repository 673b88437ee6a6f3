// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>

#include "moesaic/models/cluster_moe/cluster_moe.h"
#include "moesaic/nn/script.h"

namespace moesaic {
namespace {

constexpr char kAlone[] = R"(
    inputs = images.squeeze(1)
    y = self.experts.one_by_one(inputs, [inputs.size(0)])
)";
// The router sees the sum of the patches, or of their pieces.
constexpr char kRouted[] = R"(
    inputs = images.squeeze(1)
    y = self.moe.forward(inputs.reshape([inputs.size(0), {pieces}, {width}]).sum([1]), inputs)
)";

}  // namespace

std::optional<torch::jit::Module> ClusterMoE::torchscript() const {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const std::vector<int64_t> shape = {config_.patches, config_.width};
  const std::string entrance = script::entrance(input_shape());
  const std::string logits =
      config_.scalar ? "    return torch.cat([torch.zeros_like(y), y], 1)\n" : "    return y\n";
  if (moe.is_empty()) {
    return script::make_module(unit, "ClusterMoE", *this,
                               {{"experts", script::make_experts(unit, *experts, shape)}},
                               entrance + kAlone + logits);
  }
  const int64_t width = moe->options().width;
  return script::make_module(
      unit, "ClusterMoE", *this, {{"moe", script::make_moe_layer(unit, *moe, shape)}},
      entrance +
          fmt::format(kRouted, fmt::arg("width", width),
                      fmt::arg("pieces", config_.patches * config_.width / width)) +
          logits);
}

}  // namespace moesaic
