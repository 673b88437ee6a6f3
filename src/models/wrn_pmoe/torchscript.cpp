// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

#include "moesaic/models/wrn_pmoe/wrn_pmoe.h"
#include "moesaic/nn/script.h"

namespace moesaic {
namespace {

constexpr char kPatches[] = R"(
    patches = y.unflatten(3, [-1, {patch}]).unflatten(2, [-1, {patch}])
    x = patches.permute([0, 2, 4, 1, 3, 5]).flatten(3).flatten(0, 2)
    y = self.moe.forward(x, x).unflatten(1, [-1, {positions}])
)";
// Channels of pruned experts are zeros.
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

std::optional<torch::jit::Module> WrnPMoE::torchscript() const {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const int64_t all = trunk->maps().channels;
  const std::shared_ptr<nn::WideResNetImpl> network = trunk.ptr();
  const auto forward = [&](const at::Tensor& images) { return network->forward(images); };
  script::Children children = {
      {"trunk", script::make_traced(unit, *network, forward, input_shape())},
      {"norm", script::make_batch_norm(unit, *norm)},
      {"head", script::make_linear(unit, *head)}};
  std::string source = script::entrance(input_shape()) + "    y = self.trunk.forward(images)\n";
  if (moe.is_empty()) {
    source += kMap;
  } else {
    const int64_t patch = experts->options().patch, each = experts->options().outputs;
    children.emplace_back("moe", script::make_moe_layer(unit, *moe, {all * patch * patch}));
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
  source += config_.classes == 2 ? "    return torch.cat([f / 2, -f / 2], 1)\n" : "    return f\n";
  return script::make_module(unit, "WrnPMoE", *this, children, source);
}

}  // namespace moesaic
