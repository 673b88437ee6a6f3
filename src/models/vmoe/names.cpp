// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/vmoe/names.h"

#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

using Shape = std::vector<int64_t>;

/// Returns the shape of the array in the layout of this library.
Shape native_shape(const VMoEArray& array) {
  if (array.axes.empty()) return array.view;
  Shape shape;
  for (const int64_t axis : array.axes) shape.push_back(array.view[static_cast<size_t>(axis)]);
  return shape;
}

class VMoETable {
 public:
  explicit VMoETable(const VMoEConfig& config) : config_(config) {
    const int64_t d = config.hidden_size;
    const Shape kernel = {config.patch_size.height, config.patch_size.width, config.channels, d};
    add("embedding.weight", {{"embedding/kernel", kernel, kernel, {3, 2, 0, 1}}});
    same("embedding.bias", "embedding/bias", {d});
    if (config.has_class_token()) same("cls", "cls", {1, 1, d});
    if (config.learns_positions()) {
      same("position_embedding", "Encoder/posembed_input/pos_embedding", {1, config.tokens(), d});
    }
    for (int64_t block = 0; block < config.encoder.num_layers; ++block) add_block(block);
    layer_norm("norm", "Encoder/encoder_norm", d);
    if (config.has_map_head()) map_head();
    if (config.representation_size > 0) {
      linear("pre_logits", "pre_logits", d, config.representation_size);
    }
    if (config.has_head()) linear("head", "head", config.pre_logits_size(), config.classes);
  }

  std::vector<VMoETensor> take() { return std::move(tensors_); }

 private:
  void add(const std::string& name, std::vector<VMoEArray> arrays) {
    Shape shape = native_shape(arrays.front());
    shape.front() *= static_cast<int64_t>(arrays.size());
    tensors_.push_back({name, std::move(shape), std::move(arrays)});
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

  void layer_norm(const std::string& name, const std::string& array, int64_t width) {
    same(name + ".weight", array + "/scale", {width});
    same(name + ".bias", array + "/bias", {width});
  }

  void attention(const std::string& name, const std::string& array, bool norms) {
    const int64_t d = config_.hidden_size, heads = config_.encoder.num_heads, of_head = d / heads;
    std::vector<VMoEArray> kernels, biases;
    for (const char* part : {"/query", "/key", "/value"}) {
      kernels.push_back(transposed(array + part + "/kernel", {d, heads, of_head}, d, d));
      biases.push_back({array + part + "/bias", {heads, of_head}, {d}, {}});
    }
    add(name + ".qkv.weight", std::move(kernels));
    add(name + ".qkv.bias", std::move(biases));
    if (norms) {
      same(name + ".query_norm.weight", array + "/query_ln/scale", {of_head});
      same(name + ".key_norm.weight", array + "/key_ln/scale", {of_head});
    }
    add(name + ".out.weight", {transposed(array + "/out/kernel", {heads, of_head, d}, d, d)});
    same(name + ".out.bias", array + "/out/bias", {d});
  }

  void mlp(const std::string& name, const std::string& array) {
    linear(name + ".fc1", array + "/Dense_0", config_.hidden_size, config_.encoder.mlp_dim);
    linear(name + ".fc2", array + "/Dense_1", config_.encoder.mlp_dim, config_.hidden_size);
  }

  void moe(const std::string& name, const std::string& array) {
    const VMoEMoeConfig& moe = config_.encoder.moe;
    const int64_t d = config_.hidden_size, m = config_.encoder.expert_dim();
    const int64_t experts = moe.num_experts, members = moe.ensemble_size;
    const Shape kernel =
        config_.name == kE3 ? Shape{d, members, experts / members} : Shape{d, experts};
    add(name + ".router.weight", {transposed(array + "/Router/dense/kernel", kernel, d, experts)});
    same(name + ".experts.w1", array + "/Mlp/Dense_0/kernel", {experts, d, m});
    same(name + ".experts.b1", array + "/Mlp/Dense_0/bias", {experts, m});
    same(name + ".experts.w2", array + "/Mlp/Dense_1/kernel", {experts, m, d});
    same(name + ".experts.b2", array + "/Mlp/Dense_1/bias", {experts, d});
  }

  void add_block(int64_t block) {
    const auto& layers = config_.encoder.moe.layers;
    const std::string name = "blocks." + std::to_string(block);
    const std::string array = "Encoder/encoderblock_" + std::to_string(block);
    layer_norm(name + ".norm1", array + "/LayerNorm_0", config_.hidden_size);
    attention(name + ".attention", array + "/SelfAttention", config_.encoder.attention_qk_norm);
    layer_norm(name + ".norm2", array + "/LayerNorm_1", config_.hidden_size);
    if (std::find(layers.begin(), layers.end(), block) == layers.end()) {
      mlp(name + ".mlp", array + "/Mlp");
    } else {
      moe(name + ".moe", array + "/Moe");
    }
  }

  void map_head() {
    same("map_head.probe", "MapHead/probe", {1, 1, config_.hidden_size});
    attention("map_head.attention", "MapHead/MultiHeadDotProductAttention",
              config_.map_head_normalizes());
    layer_norm("map_head.norm", "MapHead/LayerNorm", config_.hidden_size);
    mlp("map_head.mlp", "MapHead/Mlp");
  }

  const VMoEConfig& config_;
  std::vector<VMoETensor> tensors_;
};

at::Tensor as_part(const VMoEArray& array, const at::Tensor& values) {
  const at::Tensor view = values.view(array.view);
  return array.axes.empty() ? view : view.permute(array.axes);
}

}  // namespace

std::vector<VMoETensor> vmoe_tensors(const VMoEConfig& config) {
  return VMoETable(config).take();
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
    whole.narrow(0, row, rows).copy_(as_part(part, array(part).contiguous()));
    row += rows;
  }
  return whole;
}

at::Tensor array_of_tensor(const VMoETensor& tensor, const VMoEArray& array,
                           const at::Tensor& values) {
  const auto place = std::find(tensor.arrays.begin(), tensor.arrays.end(), array);
  if (place == tensor.arrays.end()) fail_usage("{} is no part of {}", array.name, tensor.name);
  const int64_t rows = native_shape(array).front();
  at::Tensor part = values.narrow(0, (place - tensor.arrays.begin()) * rows, rows);
  if (!array.axes.empty()) {
    Shape back(array.axes.size());
    for (size_t i = 0; i < back.size(); ++i) {
      back[static_cast<size_t>(array.axes[i])] = static_cast<int64_t>(i);
    }
    part = part.permute(back);
  }
  return part.contiguous().view(array.shape);
}

}  // namespace moesaic
