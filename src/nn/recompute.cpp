// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/encoder_block.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/error.h"

namespace moesaic::nn {
namespace {

using torch::autograd::variable_list;
using Output = EncoderBlockImpl::Output;

/// The state of autocast at construction, without its cache of cast weights: those cast in a pass
/// without gradients must not serve a pass with gradients.
class AutocastState {
 public:
  explicit AutocastState(c10::DeviceType device)
      : device_(device),
        on_(at::autocast::is_autocast_enabled(device)),
        cache_(at::autocast::is_autocast_cache_enabled()),
        type_(at::autocast::get_autocast_dtype(device)) {}

  void restore() const {
    at::autocast::set_autocast_enabled(device_, on_);
    at::autocast::set_autocast_dtype(device_, type_);
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  void restore_without_cache() const {
    restore();
    at::autocast::set_autocast_cache_enabled(false);
  }

 private:
  c10::DeviceType device_;
  bool on_, cache_;
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
    autocast.restore_without_cache();
    Output out = block->forward(x_BTd, generator);
    outside.restore();
    return out;
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

class RecomputeBackward : public torch::autograd::Node {
 public:
  RecomputeBackward(Pass pass, const at::Tensor& x_BTd)
      : pass_(std::move(pass)), wants_(x_BTd.requires_grad()), x_BTd_(x_BTd, /*is_output=*/false) {
    variable_list inputs = pass_.block->parameters();
    inputs.insert(inputs.begin(), x_BTd);
    set_next_edges(torch::autograd::collect_next_edges(inputs));
  }

  variable_list apply(variable_list&& grads) override {
    if (at::GradMode::is_enabled()) fail("a recomputed block has no second derivative");
    const at::AutoGradMode with_gradients(true);
    const at::Tensor x_BTd = x_BTd_.unpack().detach().requires_grad_(wants_);
    variable_list inputs = pass_.block->parameters();
    inputs.insert(inputs.begin(), x_BTd);
    const at::Generator random = pass_.random.defined() ? pass_.random.clone() : at::Generator();
    return gradients(parts_of(pass_.run(x_BTd, random)), grads, inputs);
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

bool wants_gradient(const at::Tensor& x, const variable_list& parameters) {
  if (!at::GradMode::is_enabled()) return false;
  if (x.requires_grad()) return true;
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const at::Tensor& parameter) { return parameter.requires_grad(); });
}

}  // namespace

Output forward_recomputed(const std::shared_ptr<EncoderBlockImpl>& block, const at::Tensor& x_BTd,
                          const at::Generator& random) {
  const variable_list parameters = block->parameters();
  if (!wants_gradient(x_BTd, parameters)) return block->forward(x_BTd, random);
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
