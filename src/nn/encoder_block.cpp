// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/encoder_block.h"

#include <ATen/autocast_mode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/torch.h>

#include <cmath>
#include <tuple>

#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"
#include "moesaic/ops/autocast.h"

namespace moesaic::nn {

torch::nn::LayerNorm make_layer_norm(int64_t width, double epsilon) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(epsilon));
}

torch::nn::Linear make_linear(int64_t in, int64_t out, const at::Generator& generator,
                              int64_t parts) {
  torch::nn::Linear linear(in, out);
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& part : linear->weight.chunk(parts)) xavier_uniform(part, generator);
  linear->bias.zero_();
  return linear;
}

MlpImpl::MlpImpl(MlpOptions options, at::Generator generator) : options_(options) {
  fc1 = register_module("fc1", make_linear(options.width, options.hidden, generator));
  fc2 = register_module("fc2", make_linear(options.hidden, options.width, generator));
  for (const auto& layer : {fc1, fc2}) mlp_bias_normal(layer->bias, generator);
}

at::Tensor MlpImpl::forward(const at::Tensor& x, const at::Generator& random) {
  const auto dropped = [&](const at::Tensor& y) {
    return dropout(y, is_training() ? options_.dropout : 0.0, random, batch_shard());
  };
  // Linear's forward() would add the bias in a pass of its own.
  const at::Tensor hidden =
      apply_activation(at::linear(x, fc1->weight, fc1->bias), options_.activation);
  return dropped(at::linear(dropped(hidden), fc2->weight, fc2->bias));
}

namespace {

/// Returns softmax(query key^T / sqrt(c)) value. On the meta device LibTorch would make the weights
/// of all pairs of tokens, which it does nowhere else.
at::Tensor attention(const at::Tensor& query_BHQc, const at::Tensor& key_BHTc,
                     const at::Tensor& value_BHTc) {
  // LibTorch's gradient in two bytes is up to five times slower on a CPU than that in float32.
  if (query_BHQc.is_cpu() && query_BHQc.element_size() == 2 && query_BHQc.requires_grad()) {
    const NoAutocastGuard no_autocast;
    return at::scaled_dot_product_attention(query_BHQc.to(at::kFloat), key_BHTc.to(at::kFloat),
                                            value_BHTc.to(at::kFloat))
        .to(query_BHQc.scalar_type());
  }
  if (!query_BHQc.is_meta()) {
    return at::scaled_dot_product_attention(query_BHQc, key_BHTc, value_BHTc);
  }
  return std::get<0>(
      at::_scaled_dot_product_flash_attention_for_cpu(query_BHQc, key_BHTc, value_BHTc));
}

}  // namespace

HeadNormImpl::HeadNormImpl(int64_t head_width) {
  weight = register_parameter("weight", torch::ones({head_width}));
}

at::Tensor HeadNormImpl::forward(const at::Tensor& x) const {
  return at::layer_norm(x, {weight.size(0)}, weight, {}, kLayerNormEpsilon);
}

AttentionImpl::AttentionImpl(AttentionOptions options, at::Generator generator)
    : options_(options) {
  const int64_t width = options.width;
  qkv = register_module("qkv", make_linear(width, 3 * width, generator, /*parts=*/3));
  out = register_module("out", make_linear(width, width, generator));
  if (!options.qk_norm) return;
  query_norm = register_module("query_norm", HeadNorm(width / options.num_heads));
  key_norm = register_module("key_norm", HeadNorm(width / options.num_heads));
}

at::Tensor AttentionImpl::scaled_dot_product(at::Tensor query_BHQc, at::Tensor key_BHTc,
                                             const at::Tensor& value_BHTc,
                                             const at::Generator& random) {
  if (options_.qk_norm) {
    query_BHQc = query_norm->forward(query_BHQc);
    key_BHTc = key_norm->forward(key_BHTc);
  }
  at::Tensor mixed_BHQc;
  if (is_training() && random.defined() && options_.dropout > 0.0) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(query_BHQc.size(-1)));
    const at::Tensor weights = at::matmul(query_BHQc * scale, key_BHTc.transpose(-2, -1));
    mixed_BHQc = at::matmul(dropout(weights.softmax(-1), options_.dropout, random, batch_shard()),
                            value_BHTc);
  } else {
    mixed_BHQc = attention(query_BHQc, key_BHTc, value_BHTc);
  }
  return at::linear(mixed_BHQc.transpose(1, 2).flatten(2), out->weight, out->bias);
}

at::Tensor AttentionImpl::forward(const at::Tensor& x_BTd, const at::Generator& random) {
  // All heads at once: an exported program spends microseconds on each operator.
  const auto qkv_BHTc = at::linear(x_BTd, qkv->weight, qkv->bias)
                            .unflatten(2, {3, options_.num_heads, -1})
                            .permute({2, 0, 3, 1, 4})
                            .unbind(0);
  return scaled_dot_product(qkv_BHTc[0], qkv_BHTc[1], qkv_BHTc[2], random);
}

at::Tensor AttentionImpl::attend(const at::Tensor& query_BQd, const at::Tensor& x_BTd,
                                 const at::Generator& random) {
  const int64_t width = x_BTd.size(2);
  const at::Tensor query =
      at::linear(query_BQd, qkv->weight.narrow(0, 0, width), qkv->bias.narrow(0, 0, width));
  const auto kv_BTd = at::linear(x_BTd, qkv->weight.narrow(0, width, 2 * width),
                                 qkv->bias.narrow(0, width, 2 * width))
                          .chunk(2, 2);
  return scaled_dot_product(heads_of(query), heads_of(kv_BTd[0]), heads_of(kv_BTd[1]), random);
}

MapHeadImpl::MapHeadImpl(AttentionOptions attention_options, MlpOptions mlp_options,
                         at::Generator generator, double epsilon) {
  const int64_t width = attention_options.width;
  probe = register_parameter("probe", torch::empty({1, 1, width}));
  xavier_uniform(probe, generator);
  attention = register_module("attention", Attention(attention_options, generator));
  norm = register_module("norm", make_layer_norm(width, epsilon));
  mlp = register_module("mlp", Mlp(mlp_options, generator));
}

at::Tensor MapHeadImpl::forward(const at::Tensor& x_BTd) {
  // Recording must not see the batch's size, see script::make_traced().
  const at::Tensor pooled = attention->attend(probe.expand_as(x_BTd.narrow(1, 0, 1)), x_BTd);
  return (pooled + mlp->forward(norm->forward(pooled))).select(1, 0);
}

namespace {

at::Tensor scaled(const at::Tensor& x, const at::Tensor& scale) {
  return scale.defined() ? x * scale : x;
}

}  // namespace

EncoderBlockImpl::EncoderBlockImpl(EncoderBlockOptions options, at::Generator generator)
    : dropout_(options.mlp.dropout), drop_path_(options.drop_path) {
  const int64_t width = options.attention.width;
  norm1 = register_module("norm1", make_layer_norm(width, options.epsilon));
  attention = register_module("attention", Attention(options.attention, generator));
  norm2 = register_module("norm2", make_layer_norm(width, options.epsilon));
  if (options.moe) {
    moe = register_module("moe", MoELayer(*options.moe, generator));
  } else {
    mlp = register_module("mlp", Mlp(options.mlp, generator));
  }
  if (!options.layer_scale) return;
  scale1 = register_parameter("scale1", torch::full({width}, *options.layer_scale));
  scale2 = register_parameter("scale2", torch::full({width}, *options.layer_scale));
}

at::Tensor EncoderBlockImpl::drop_path(const at::Tensor& x_BTd, const at::Generator& random) const {
  if (!is_training() || !random.defined() || drop_path_ == 0.0) return x_BTd;
  const at::Tensor ones_B11 = at::ones({x_BTd.size(0), 1, 1}, x_BTd.options());
  return x_BTd * dropout(ones_B11, drop_path_, random, batch_shard());
}

EncoderBlockImpl::Output EncoderBlockImpl::forward(const at::Tensor& x_BTd,
                                                   const at::Generator& random) {
  const at::Tensor attended = scaled(attention->forward(norm1->forward(x_BTd), random), scale1);
  const at::Tensor kept = dropout(attended, is_training() ? dropout_ : 0.0, random, batch_shard());
  const at::Tensor mixed = x_BTd + drop_path(kept, random);
  const at::Tensor normed = norm2->forward(mixed);
  if (moe.is_empty()) {
    const at::Tensor y_BTd = scaled(mlp->forward(normed, random), scale2);
    return {mixed + drop_path(y_BTd, random), std::nullopt};
  }
  const int64_t members = moe->options().num_members;
  MoEOutput out = moe->forward(to_member_order(normed, members), random);
  const at::Tensor y_BTd = scaled(from_member_order(out.y_Td, members, mixed.sizes()), scale2);
  return {mixed + drop_path(y_BTd, random), std::move(out)};
}

at::Tensor to_member_order(const at::Tensor& x_BTd, int64_t members) {
  const int64_t tokens = x_BTd.size(1), width = x_BTd.size(2);
  if (members == 1) return x_BTd.reshape({-1, width});
  return x_BTd.view({-1, members, tokens, width}).transpose(1, 2).reshape({-1, width});
}

at::Tensor from_member_order(const at::Tensor& x_Td, int64_t members, at::IntArrayRef shape) {
  if (members == 1) return x_Td.view(shape);
  return x_Td.view({-1, shape[1], members, shape[2]}).transpose(1, 2).reshape(shape);
}

namespace {

using torch::autograd::variable_list;
using Output = EncoderBlockImpl::Output;

/// The state of autocast at construction.
class AutocastState {
 public:
  explicit AutocastState(c10::DeviceType device)
      : device_(device),
        is_enabled_(at::autocast::is_autocast_enabled(device)),
        is_cache_enabled_(at::autocast::is_autocast_cache_enabled()),
        type_(at::autocast::get_autocast_dtype(device)) {}

  void restore() const {
    at::autocast::set_autocast_enabled(device_, is_enabled_);
    at::autocast::set_autocast_dtype(device_, type_);
    at::autocast::set_autocast_cache_enabled(is_cache_enabled_);
  }

 private:
  c10::DeviceType device_;
  bool is_enabled_, is_cache_enabled_;
  at::ScalarType type_;
};

/// Returns the device whose autocast serves a tensor; the meta device has none.
c10::DeviceType autocast_device(const at::Tensor& tensor) {
  return tensor.is_meta() ? at::kCPU : tensor.device().type();
}

/// Context of a pass through a block, apart from its input.
struct Pass {
  std::shared_ptr<EncoderBlockImpl> block;
  at::Generator random;  ///< State before the pass; undefined means no draws.
  AutocastState autocast;

  Output run(const at::Tensor& x_BTd, at::Generator generator) const {
    const AutocastState outside(autocast_device(x_BTd));
    const auto leave = c10::make_scope_exit([&] { outside.restore(); });
    autocast.restore();
    // Weights cast in a pass without gradients must not serve a pass with gradients.
    at::autocast::set_autocast_cache_enabled(false);
    return block->forward(x_BTd, generator);
  }
};

/// Converts an output to its differentiable tensors, and back.
variable_list parts_of(const Output& out) {
  if (!out.moe) return {out.x_BTd};
  variable_list parts = {out.x_BTd, out.moe->routing.gate, out.moe->logits_TE};
  const bool noisy = !out.moe->noisy_logits_TE.is_same(out.moe->logits_TE);
  if (noisy) parts.push_back(out.moe->noisy_logits_TE);
  return parts;
}
Output with_parts(Output out, const variable_list& parts) {
  out.x_BTd = parts[0];
  if (!out.moe) return out;
  out.moe->y_Td.reset();  // The output is part of x and would keep its graph alive.
  out.moe->routing.gate = parts[1];
  out.moe->logits_TE = parts[2];
  out.moe->noisy_logits_TE = parts.back();
  return out;
}

/// Returns what the gradients of a pass are of: its input, and the block's parameters.
variable_list inputs_of(const EncoderBlockImpl& block, const at::Tensor& x_BTd) {
  variable_list inputs = block.parameters();
  inputs.insert(inputs.begin(), x_BTd);
  return inputs;
}

class RecomputeBackward : public torch::autograd::Node {
 public:
  RecomputeBackward(Pass pass, const at::Tensor& x_BTd)
      : pass_(std::move(pass)), wants_(x_BTd.requires_grad()), x_BTd_(x_BTd, /*is_output=*/false) {
    set_next_edges(torch::autograd::collect_next_edges(inputs_of(*pass_.block, x_BTd)));
  }

  variable_list apply(variable_list&& grads) override {
    if (at::GradMode::is_enabled()) fail("activation checkpointing allows no second derivatives");
    const at::AutoGradMode with_gradients(true);
    const at::Tensor x_BTd = x_BTd_.unpack().detach().requires_grad_(wants_);
    const at::Generator random = pass_.random.defined() ? pass_.random.clone() : at::Generator();
    return gradients(parts_of(pass_.run(x_BTd, random)), grads, inputs_of(*pass_.block, x_BTd));
  }

  void release_variables() override { x_BTd_.reset_data(); }

 private:
  /// Returns the gradients, undefined for inputs that require none.
  static variable_list gradients(const variable_list& parts, const variable_list& grads,
                                 const variable_list& inputs) {
    variable_list roots, arriving, wanted;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!grads[i].defined() || !parts[i].requires_grad()) continue;
      roots.push_back(parts[i]);
      arriving.push_back(grads[i]);
    }
    for (const at::Tensor& input : inputs) {
      if (input.requires_grad()) wanted.push_back(input);
    }
    const variable_list found = torch::autograd::grad(roots, wanted, arriving, std::nullopt,
                                                      /*create_graph=*/false,
                                                      /*allow_unused=*/true);
    variable_list all;
    auto next = found.begin();
    for (const at::Tensor& input : inputs) {
      all.push_back(input.requires_grad() ? *next++ : at::Tensor());
    }
    return all;
  }

  Pass pass_;
  bool wants_;
  torch::autograd::SavedVariable x_BTd_;
};

}  // namespace

Output forward_checkpointed(const std::shared_ptr<EncoderBlockImpl>& block, const at::Tensor& x_BTd,
                            const at::Generator& random) {
  if (!torch::autograd::compute_requires_grad(inputs_of(*block, x_BTd)))
    return block->forward(x_BTd, random);
  const Pass pass{block, random.defined() ? random.clone() : at::Generator(),
                  AutocastState(autocast_device(x_BTd))};
  const std::shared_ptr<torch::autograd::Node> node(new RecomputeBackward(pass, x_BTd),
                                                    torch::autograd::deleteNode);
  Output out;
  {
    // Gradients stay enabled, since operators may round differently without: in routed_mlp,
    // bfloat16 rows that are combined stay wide.
    const at::AutoGradMode with_gradients(true);
    out = pass.run(x_BTd.detach().requires_grad_(x_BTd.requires_grad()), random);
  }
  variable_list parts;
  for (const at::Tensor& part : parts_of(out)) {
    parts.push_back(part.variable_data());  // The copy is not a view.
    torch::autograd::set_history(parts.back(), node);
  }
  return with_parts(std::move(out), parts);
}

}  // namespace moesaic::nn
