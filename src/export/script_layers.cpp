// SPDX-License-Identifier: Apache-2.0
// The dense layers of a transformer.
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "script_module.h"

namespace moesaic::script {
namespace {

constexpr char kLinear[] = R"(
def forward(self, x: Tensor) -> Tensor:
    return torch.linear(x, self.weight, self.bias)
)";

constexpr char kLayerNorm[] = R"(
def forward(self, x: Tensor) -> Tensor:
    return torch.layer_norm(x, [{width}], self.weight, self.bias, {eps})
)";

constexpr char kAttention[] = R"(
def forward(self, x: Tensor) -> Tensor:
    batch, tokens, width = x.size(0), x.size(1), x.size(2)
    qkv = self.qkv.forward(x).view([batch, tokens, 3, {heads}, width // {heads}])
    query, key, value = qkv.permute([2, 0, 3, 1, 4]).unbind(0)
    mixed = torch.scaled_dot_product_attention(query, key, value)
    return self.out.forward(mixed.transpose(1, 2).reshape([batch, tokens, width]))
)";

constexpr char kMlp[] = R"(
def forward(self, x: Tensor) -> Tensor:
    return self.fc2.forward(torch.gelu(self.fc1.forward(x), approximate="tanh"))
)";

constexpr char kDenseBlock[] = R"(
def forward(self, x: Tensor) -> Tensor:
    mixed = x + self.attention.forward(self.norm1.forward(x))
    return mixed + self.mlp.forward(self.norm2.forward(mixed))
)";

constexpr char kMoEBlock[] = R"(
def forward(self, x: Tensor) -> Tensor:
    mixed = x + self.attention.forward(self.norm1.forward(x))
    tokens = self.norm2.forward(mixed).flatten(0, 1)
    return mixed + self.moe.forward(tokens).view_as(mixed)
)";

Module make_attention(const Unit& unit, const nn::SelfAttentionImpl& from, int64_t heads) {
  return make_module(unit, "SelfAttention", from,
                     {{"qkv", make_linear(unit, *from.qkv)}, {"out", make_linear(unit, *from.out)}},
                     fmt::format(kAttention, fmt::arg("heads", heads)));
}

Module make_mlp(const Unit& unit, const nn::MlpImpl& from) {
  return make_module(unit, "Mlp", from,
                     {{"fc1", make_linear(unit, *from.fc1)}, {"fc2", make_linear(unit, *from.fc2)}},
                     kMlp);
}

}  // namespace

Module make_linear(const Unit& unit, const torch::nn::LinearImpl& from) {
  return make_module(unit, "Linear", from, {}, kLinear);
}

Module make_layer_norm(const Unit& unit, const torch::nn::LayerNormImpl& from) {
  return make_module(
      unit, "LayerNorm", from, {},
      fmt::format(kLayerNorm, fmt::arg("width", from.options.normalized_shape().at(0)),
                  fmt::arg("eps", literal(from.options.eps()))));
}

Module make_encoder_block(const Unit& unit, const nn::EncoderBlockImpl& from, int64_t heads) {
  Children children = {{"norm1", make_layer_norm(unit, *from.norm1)},
                       {"attention", make_attention(unit, *from.attention, heads)},
                       {"norm2", make_layer_norm(unit, *from.norm2)}};
  if (from.moe.is_empty()) {
    children.emplace_back("mlp", make_mlp(unit, *from.mlp));
    return make_module(unit, "EncoderBlock", from, children, kDenseBlock);
  }
  children.emplace_back("moe", make_moe_layer(unit, *from.moe));
  return make_module(unit, "MoEEncoderBlock", from, children, kMoEBlock);
}

}  // namespace moesaic::script
