// SPDX-License-Identifier: Apache-2.0
// The dense layers of a transformer.
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "moesaic/nn/encoder_block.h"
#include "moesaic/nn/script.h"

namespace moesaic::script {
namespace {

constexpr char kLinear[] = R"(
def forward(self, x: Tensor) -> Tensor:
    return torch.linear(x, self.weight, self.bias)
)";

constexpr char kBatchNorm[] = R"(
def forward(self, x: Tensor) -> Tensor:
    return torch.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var, False,
                            0.0, {eps}, False)
)";

constexpr char kLayerNorm[] = R"(
def forward(self, x: Tensor) -> Tensor:
    return torch.layer_norm(x, [{width}], self.weight, self.bias, {eps})
)";

constexpr char kHeadNorm[] = R"(
def forward(self, x: Tensor) -> Tensor:
    return torch.layer_norm(x, [{width}], self.weight, None, {eps})
)";

// attend(query [B, Q, d], x [B, T, d]) computes attention with queries of other tokens.
constexpr char kAttention[] = R"(
def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    mixed = torch.scaled_dot_product_attention({query}, {key}, value)
    return self.out.forward(mixed.transpose(1, 2).flatten(2))

def forward(self, x: Tensor) -> Tensor:
    batch, tokens, width = x.size(0), x.size(1), x.size(2)
    qkv = self.qkv.forward(x).view([batch, tokens, 3, {heads}, width // {heads}])
    query, key, value = qkv.permute([2, 0, 3, 1, 4]).unbind(0)
    return self.mix(query, key, value)

def attend(self, query: Tensor, x: Tensor) -> Tensor:
    width = x.size(2)
    query = self.qkv.forward(query)[:, :, :width]
    query = query.view([query.size(0), query.size(1), {heads}, width // {heads}])
    kv = self.qkv.forward(x)[:, :, width:]
    key, value = kv.view([x.size(0), x.size(1), 2, {heads}, width // {heads}]).unbind(2)
    return self.mix(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
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
    tokens = self.norm2.forward(mixed){to_member_order}
    return mixed + self.moe.forward(tokens, tokens){from_member_order}
)";

// The tokens of an image's members are in turn, see nn::to_member_order().
constexpr char kToMemberOrder[] = ".unflatten(0, [-1, {0}]).transpose(1, 2).flatten(0, 2)";
constexpr char kFromMemberOrder[] =
    ".view([-1, mixed.size(1), {0}, mixed.size(2)]).transpose(1, 2).reshape(mixed.size())";

constexpr char kMapHead[] = R"(
def forward(self, x: Tensor) -> Tensor:
    pooled = self.attention.attend(self.probe.expand([x.size(0), -1, -1]), x)
    return (pooled + self.mlp.forward(self.norm.forward(pooled)))[:, 0]
)";

Module make_head_norm(const Unit& unit, const nn::HeadNormImpl& from) {
  return make_module(unit, "HeadNorm", from, {},
                     fmt::format(kHeadNorm, fmt::arg("width", from.weight.size(0)),
                                 fmt::arg("eps", literal(nn::kLayerNormEpsilon))));
}

Module make_attention(const Unit& unit, const nn::AttentionImpl& from) {
  Children children = {{"qkv", make_linear(unit, *from.qkv)},
                       {"out", make_linear(unit, *from.out)}};
  const bool norms = from.options().qk_norm;
  if (norms) {
    children.emplace_back("query_norm", make_head_norm(unit, *from.query_norm));
    children.emplace_back("key_norm", make_head_norm(unit, *from.key_norm));
  }
  return make_module(
      unit, "Attention", from, children,
      fmt::format(kAttention, fmt::arg("heads", from.options().heads),
                  fmt::arg("query", norms ? "self.query_norm.forward(query)" : "query"),
                  fmt::arg("key", norms ? "self.key_norm.forward(key)" : "key")));
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

Module make_batch_norm(const Unit& unit, const torch::nn::BatchNorm1dImpl& from) {
  return make_module(unit, "BatchNorm", from, {},
                     fmt::format(kBatchNorm, fmt::arg("eps", literal(from.options.eps()))));
}

Module make_layer_norm(const Unit& unit, const torch::nn::LayerNormImpl& from) {
  return make_module(
      unit, "LayerNorm", from, {},
      fmt::format(kLayerNorm, fmt::arg("width", from.options.normalized_shape().at(0)),
                  fmt::arg("eps", literal(from.options.eps()))));
}

Module make_map_head(const Unit& unit, const nn::MapHeadImpl& from) {
  return make_module(unit, "MapHead", from,
                     {{"attention", make_attention(unit, *from.attention)},
                      {"norm", make_layer_norm(unit, *from.norm)},
                      {"mlp", make_mlp(unit, *from.mlp)}},
                     kMapHead);
}

Module make_encoder_block(const Unit& unit, const nn::EncoderBlockImpl& from) {
  Children children = {{"norm1", make_layer_norm(unit, *from.norm1)},
                       {"attention", make_attention(unit, *from.attention)},
                       {"norm2", make_layer_norm(unit, *from.norm2)}};
  if (from.moe.is_empty()) {
    children.emplace_back("mlp", make_mlp(unit, *from.mlp));
    return make_module(unit, "EncoderBlock", from, children, kDenseBlock);
  }
  children.emplace_back("moe", make_moe_layer(unit, *from.moe, {}));
  const int64_t members = from.moe->options().members;
  return make_module(
      unit, "MoEEncoderBlock", from, children,
      fmt::format(kMoEBlock,
                  fmt::arg("to_member_order",
                           members > 1 ? fmt::format(kToMemberOrder, members) : ".flatten(0, 1)"),
                  fmt::arg("from_member_order", members > 1 ? fmt::format(kFromMemberOrder, members)
                                                            : ".view_as(mixed)")));
}

}  // namespace moesaic::script
