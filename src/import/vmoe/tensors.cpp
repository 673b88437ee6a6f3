// SPDX-License-Identifier: Apache-2.0
// Name and layout of every parameter of a V-MoE in the tree of google-research/vmoe.
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "arrays.h"

namespace moesaic {
namespace {

using Shape = std::vector<int64_t>;

/// Returns the shape of the array in the layout of this library.
Shape native_shape(const VMoEArray& array) {
  Shape shape = array.view;
  for (size_t i = 0; i < array.axes.size(); ++i)
    shape[i] = array.view[static_cast<size_t>(array.axes[i])];
  return shape;
}

class VMoETable {
 public:
  explicit VMoETable(const VMoEConfig& config) : config_(config), d_(config.hidden_size) {
    const Shape kernel = {config.patch_size.height, config.patch_size.width, config.channels, d_};
    add("embedding.weight", {{"embedding/kernel", kernel, kernel, {3, 2, 0, 1}}});
    same("embedding.bias", "embedding/bias", {d_});
    if (config.has_class_token()) same("cls", "cls", {1, 1, d_});
    if (config.learns_positions()) {
      same("position_embedding", "Encoder/posembed_input/pos_embedding", {1, config.tokens(), d_});
    }
    for (int64_t block = 0; block < config.encoder.num_layers; ++block) add_block(block);
    layer_norm("norm", "Encoder/encoder_norm");
    if (config.has_map_head()) {
      same("map_head.probe", "MapHead/probe", {1, 1, d_});
      attention("map_head.attention", "MapHead/MultiHeadDotProductAttention",
                config.map_head_normalizes());
      layer_norm("map_head.norm", "MapHead/LayerNorm");
      mlp("map_head.mlp", "MapHead/Mlp");
    }
    if (config.representation_size > 0) {
      linear("pre_logits", "pre_logits", d_, config.representation_size);
    }
    if (config.has_head()) linear("head", "head", config.pre_logits_size(), config.classes);
  }

  std::vector<VMoETensor> tensors;

 private:
  void add(const std::string& name, std::vector<VMoEArray> arrays) {
    Shape shape = native_shape(arrays.front());
    shape.front() *= static_cast<int64_t>(arrays.size());
    tensors.push_back({name, std::move(shape), std::move(arrays)});
  }

  void same(const std::string& name, const std::string& array, const Shape& shape) {
    add(name, {{array, shape, shape, {}}});
  }

  static VMoEArray transposed(const std::string& array, const Shape& shape, int64_t in,
                              int64_t out) {
    return {array, shape, {in, out}, {1, 0}};
  }

  void linear(const std::string& name, const std::string& array, int64_t in, int64_t out) {
    add(name + ".weight", {transposed(array + "/kernel", {in, out}, in, out)});
    same(name + ".bias", array + "/bias", {out});
  }

  void layer_norm(const std::string& name, const std::string& array) {
    same(name + ".weight", array + "/scale", {d_});
    same(name + ".bias", array + "/bias", {d_});
  }

  void attention(const std::string& name, const std::string& array, bool norms) {
    const int64_t heads = config_.encoder.num_heads, of_head = d_ / heads;
    std::vector<VMoEArray> kernels, biases;
    for (const char* part : {"/query", "/key", "/value"}) {
      kernels.push_back(transposed(array + part + "/kernel", {d_, heads, of_head}, d_, d_));
      biases.push_back({array + part + "/bias", {heads, of_head}, {d_}, {}});
    }
    add(name + ".qkv.weight", std::move(kernels));
    add(name + ".qkv.bias", std::move(biases));
    if (norms) {
      same(name + ".query_norm.weight", array + "/query_ln/scale", {of_head});
      same(name + ".key_norm.weight", array + "/key_ln/scale", {of_head});
    }
    add(name + ".out.weight", {transposed(array + "/out/kernel", {heads, of_head, d_}, d_, d_)});
    same(name + ".out.bias", array + "/out/bias", {d_});
  }

  void mlp(const std::string& name, const std::string& array) {
    linear(name + ".fc1", array + "/Dense_0", d_, config_.encoder.mlp_dim);
    linear(name + ".fc2", array + "/Dense_1", config_.encoder.mlp_dim, d_);
  }

  void moe(const std::string& name, const std::string& array) {
    const VMoEMoeConfig& moe = config_.encoder.moe;
    const int64_t m = config_.encoder.expert_dim(), experts = moe.num_experts;
    const Shape kernel = config_.name == kE3
                             ? Shape{d_, moe.ensemble_size, experts / moe.ensemble_size}
                             : Shape{d_, experts};
    add(name + ".router.weight", {transposed(array + "/Router/dense/kernel", kernel, d_, experts)});
    same(name + ".experts.w1", array + "/Mlp/Dense_0/kernel", {experts, d_, m});
    same(name + ".experts.b1", array + "/Mlp/Dense_0/bias", {experts, m});
    same(name + ".experts.w2", array + "/Mlp/Dense_1/kernel", {experts, m, d_});
    same(name + ".experts.b2", array + "/Mlp/Dense_1/bias", {experts, d_});
  }

  void add_block(int64_t block) {
    const std::string name = "blocks." + std::to_string(block);
    const std::string array = "Encoder/encoderblock_" + std::to_string(block);
    layer_norm(name + ".norm1", array + "/LayerNorm_0");
    attention(name + ".attention", array + "/SelfAttention", config_.encoder.attention_qk_norm);
    layer_norm(name + ".norm2", array + "/LayerNorm_1");
    if (std::ranges::count(config_.encoder.moe.layers, block) == 0) {
      mlp(name + ".mlp", array + "/Mlp");
    } else {
      moe(name + ".moe", array + "/Moe");
    }
  }

  const VMoEConfig& config_;
  const int64_t d_;
};

}  // namespace

std::vector<VMoETensor> vmoe_tensors(const VMoEConfig& config) {
  return std::move(VMoETable(config).tensors);
}

at::Tensor tensor_of_arrays(const VMoETensor& tensor,
                            const std::function<at::Tensor(const VMoEArray&)>& array) {
  const VMoEArray& first = tensor.arrays.front();
  if (tensor.arrays.size() == 1 && first.axes.empty()) {
    return array(first).contiguous().view(tensor.shape);
  }
  at::Tensor whole = at::empty(tensor.shape, at::kFloat);
  int64_t row = 0;
  for (const VMoEArray& part : tensor.arrays) {
    const int64_t rows = native_shape(part).front();
    const at::Tensor values = array(part).contiguous().view(part.view);
    whole.narrow(0, row, rows).copy_(part.axes.empty() ? values : values.permute(part.axes));
    row += rows;
  }
  return whole;
}

at::Tensor array_of_tensor(const VMoETensor& tensor, size_t array, const at::Tensor& values) {
  const VMoEArray& part = tensor.arrays.at(array);
  const int64_t rows = native_shape(part).front();
  const at::Tensor own = values.narrow(0, static_cast<int64_t>(array) * rows, rows);
  Shape back(part.axes.size());
  for (size_t i = 0; i < back.size(); ++i) {
    back[static_cast<size_t>(part.axes[i])] = static_cast<int64_t>(i);
  }
  return (back.empty() ? own : own.permute(back)).contiguous().view(part.shape);
}

}  // namespace moesaic
