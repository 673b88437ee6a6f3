// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/jit/api/module.h>

#include <fmt/format.h>

#include "moesaic/models/vmoe/vmoe.h"
#include "moesaic/nn/script.h"

namespace moesaic {
namespace {

using script::Children, script::Unit;
using torch::jit::Module;

constexpr char kEmbedding[] = R"(
def forward(self, images: Tensor) -> Tensor:
    x = torch.conv2d(images, self.weight, self.bias, [{patch_height}, {patch_width}])
    return x.flatten(2).transpose(1, 2)
)";

Module make_embedding(const Unit& unit, const torch::nn::Conv2dImpl& from, const Sides& patch) {
  return script::make_module(unit, "PatchEmbedding", from, {},
                             fmt::format(kEmbedding, fmt::arg("patch_height", patch.height),
                                         fmt::arg("patch_width", patch.width)));
}

constexpr char kPositions[] = R"(
def forward(self, x: Tensor) -> Tensor:
    return x + self.waves
)";

Module make_positions(const Unit& unit, const at::Tensor& waves) {
  torch::nn::Module holder("positions");
  holder.register_buffer("waves", waves);
  return script::make_module(unit, "PositionWaves", holder, {}, kPositions);
}

std::string forward_source(const VMoE& from) {
  std::string source =
      script::entrance(from.input_shape()) + "    x = self.embedding.forward(images)\n";
  if (from.position_waves().defined()) source += "    x = self.positions.forward(x)\n";
  const bool token = from.cls.defined();
  if (token) source += "    x = torch.cat([self.cls.expand([images.size(0), -1, -1]), x], 1)\n";
  if (from.position_embedding.defined()) source += "    x = x + self.position_embedding\n";
  const std::vector<MoEBlock> with_experts = from.moe_blocks();
  for (size_t block = 0; block < from.blocks->size(); ++block) {
    const bool divides = from.members() > 1 && !with_experts.empty() &&
                         with_experts.front().block == static_cast<int64_t>(block);
    if (divides) source += fmt::format("    x = x.repeat_interleave({}, 0)\n", from.members());
    source += fmt::format("    x = getattr(self.blocks, \"{}\").forward(x)\n", block);
  }
  source += "    x = self.norm.forward(x)\n";
  const std::string& classifier = from.settings().classifier;
  const char* pooled = classifier == "map"   ? "self.map_head.forward(x)"
                       : classifier == "gap" ? "x.mean([1])"
                                             : "x[:, 0]";
  source += fmt::format("    x = {}\n", pooled);
  if (!from.pre_logits.is_empty()) source += "    x = torch.tanh(self.pre_logits.forward(x))\n";
  source += from.head.is_empty() ? "    return x\n" : "    return self.head.forward(x)\n";
  return source;
}

Module make_vmoe(const Unit& unit, const VMoE& from) {
  const VMoEConfig& config = from.settings();
  Children blocks;
  for (size_t block = 0; block < from.blocks->size(); ++block) {
    const auto encoder = std::dynamic_pointer_cast<nn::EncoderBlockImpl>(from.blocks->ptr(block));
    blocks.emplace_back(std::to_string(block), script::make_encoder_block(unit, *encoder));
  }
  Children children = {{"embedding", make_embedding(unit, *from.embedding, config.patch_size)},
                       {"blocks", script::make_module(unit, "Blocks", *from.blocks, blocks, "")},
                       {"norm", script::make_layer_norm(unit, *from.norm)}};
  if (from.position_waves().defined()) {
    children.emplace_back("positions", make_positions(unit, from.position_waves()));
  }
  if (!from.head.is_empty()) children.emplace_back("head", script::make_linear(unit, *from.head));
  if (!from.map_head.is_empty()) {
    children.emplace_back("map_head", script::make_map_head(unit, *from.map_head.ptr()));
  }
  if (!from.pre_logits.is_empty()) {
    children.emplace_back("pre_logits", script::make_linear(unit, *from.pre_logits));
  }
  return script::make_module(unit, "VMoE", from, children, forward_source(from));
}

}  // namespace

std::optional<Module> VMoE::torchscript() const {
  return make_vmoe(std::make_shared<torch::jit::CompilationUnit>(), *this);
}

}  // namespace moesaic
