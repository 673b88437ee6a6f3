// SPDX-License-Identifier: Apache-2.0
#include "eager_vmoe.h"

#include <fmt/format.h>
#include <torch/torch.h>

namespace moesaic::bench {

using at::Tensor;

EagerVMoE::EagerVMoE(const VMoE& model, Loop loop, bool turned)
    : config_(model.settings()), loop_(loop) {
  for (const auto& item : model.named_parameters()) {
    Tensor weight = item.value().detach().clone();
    if (turned && weight.dim() == 3 && item.key().find(".experts.") != std::string::npos) {
      weight = turned_over(weight);
    }
    weights_[item.key()] = weight.requires_grad_();
  }
}

std::vector<Tensor> EagerVMoE::parameters() const {
  std::vector<Tensor> list;
  for (const auto& [name, weight] : weights_) list.push_back(weight);
  return list;
}

Tensor EagerVMoE::linear(const Tensor& x, const std::string& name) const {
  return at::linear(x, of(name + ".weight"), of(name + ".bias"));
}

Tensor EagerVMoE::layer_norm(const Tensor& x, const std::string& name) const {
  return at::layer_norm(x, {x.size(-1)}, of(name + ".weight"), of(name + ".bias"), 1e-6);
}

Tensor EagerVMoE::attention(const Tensor& x_BTd, const std::string& name) const {
  const int64_t B = x_BTd.size(0), T = x_BTd.size(1), d = x_BTd.size(2);
  const int64_t heads = config_.encoder.num_heads;
  const auto qkv = linear(x_BTd, name + ".qkv").chunk(3, 2);
  const auto split = [&](const Tensor& part) {
    return part.view({B, T, heads, d / heads}).transpose(1, 2);
  };
  const Tensor mixed =
      at::scaled_dot_product_attention(split(qkv[0]), split(qkv[1]), split(qkv[2]));
  return linear(mixed.transpose(1, 2).reshape({B, T, d}), name + ".out");
}

Tensor EagerVMoE::experts(const Tensor& x_BTd, const std::string& name) const {
  const EagerLayer layer{of(name + ".router.weight").t(), of(name + ".experts.w1"),
                         of(name + ".experts.b1"),        of(name + ".experts.w2"),
                         of(name + ".experts.b2"),        config_.encoder.moe.router.k};
  const Tensor x_Td = x_BTd.reshape({-1, x_BTd.size(2)});
  return (loop_ == Loop::masked ? masked_loop(layer, x_Td) : sorted_loop(layer, x_Td))
      .view_as(x_BTd);
}

Tensor EagerVMoE::block(const Tensor& x_BTd, int64_t index) const {
  const std::string name = fmt::format("blocks.{}", index);
  const Tensor mixed = x_BTd + attention(layer_norm(x_BTd, name + ".norm1"), name + ".attention");
  const Tensor normed = layer_norm(mixed, name + ".norm2");
  if (weights_.contains(name + ".moe.router.weight")) return mixed + experts(normed, name + ".moe");
  return mixed + linear(at::gelu(linear(normed, name + ".mlp.fc1"), "tanh"), name + ".mlp.fc2");
}

Tensor EagerVMoE::forward(const Tensor& images_BCHW) const {
  const int64_t patch = config_.patch_size.height;
  Tensor x = at::conv2d(images_BCHW, of("embedding.weight"), of("embedding.bias"), {patch, patch});
  x = x.flatten(2).transpose(1, 2);
  x = at::cat({of("cls").expand({x.size(0), -1, -1}), x}, 1) + of("position_embedding");
  for (int64_t i = 0; i < config_.encoder.num_layers; ++i) x = block(x, i);
  return linear(layer_norm(x, "norm").select(1, 0), "head");
}

}  // namespace moesaic::bench
