// SPDX-License-Identifier: Apache-2.0
// Grouped MLP: schema, checks, shape function and gradient. The kernels are cpu/grouped_mlp.cpp and
// its siblings.
#include "moesaic/ops/grouped_mlp.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "bias_in_combine.h"
#include "check.h"
#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"

namespace moesaic {
namespace ops {
namespace {

using at::Tensor;
using ForwardTensors = std::tuple<Tensor, Tensor>;
using BackwardTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using ForwardSignature = ForwardTensors(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                        const Tensor&, const Tensor&, int64_t, bool, bool);
using BackwardSignature = BackwardTensors(const Tensor&, const Tensor&, const Tensor&,
                                          const Tensor&, const Tensor&, const Tensor&,
                                          const Tensor&, int64_t);

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  // `hidden` is for the backward pass: the activation's inputs, on a GPU without their bias;
  // without `keep_hidden` it is empty unless a gradient is required. Without `add_b2` y lacks the
  // last bias, whose gradient is what it would have been: see bias_in_combine.h.
  m.def(
      "grouped_mlp(Tensor rows, Tensor offsets, Tensor w1, Tensor b1, Tensor w2, Tensor b2, "
      "int activation=1, bool keep_hidden=False, bool add_b2=True) -> (Tensor y, Tensor hidden)");
  m.def(
      "grouped_mlp_backward(Tensor grad, Tensor rows, Tensor offsets, Tensor hidden, Tensor w1, "
      "Tensor b1, Tensor w2, int activation) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}

ForwardTensors call_forward(const Tensor& rows, const Tensor& offsets, const Tensor& w1,
                            const Tensor& b1, const Tensor& w2, const Tensor& b2,
                            int64_t activation, bool keep_hidden, bool add_b2) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::grouped_mlp", "")
                             .typed<ForwardSignature>();
  return op.call(rows, offsets, w1, b1, w2, b2, activation, keep_hidden, add_b2);
}

BackwardTensors call_backward(const Tensor& grad, const Tensor& rows, const Tensor& offsets,
                              const Tensor& hidden, const Tensor& w1, const Tensor& b1,
                              const Tensor& w2, int64_t activation) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::grouped_mlp_backward", "")
                             .typed<BackwardSignature>();
  return op.call(grad, rows, offsets, hidden, w1, b1, w2, activation);
}

}  // namespace

void check_experts(const Tensor& rows, const Tensor& offsets, const Tensor& w1, const Tensor& b1,
                   const Tensor& w2, const Tensor& b2, int64_t activation) {
  constexpr const char* kOp = "grouped_mlp";
  check_shape(kOp, "rows", rows, {-1, -1});
  check_values(kOp, "rows", rows);
  check_shape(kOp, "offsets", offsets, {-1});
  check_index(kOp, "offsets", offsets);
  if (offsets.sym_size(0) < 1) fail("grouped_mlp: offsets must not be empty");
  const c10::SymInt experts = offsets.sym_size(0) - 1;
  const c10::SymInt width = rows.sym_size(1);
  if (width < 1)
    fail("grouped_mlp: rows must have a column, their shape is {}", c10::str(rows.sym_sizes()));
  check_shape(kOp, "w1", w1, {experts, width, -1});
  const c10::SymInt hidden = w1.sym_size(2);
  if (hidden < 1) {
    fail("grouped_mlp: w1 must have a column, its shape is {}", c10::str(w1.sym_sizes()));
  }
  check_shape(kOp, "b1", b1, {experts, hidden});
  check_shape(kOp, "w2", w2, {experts, hidden, width});
  check_shape(kOp, "b2", b2, {experts, width});
  for (const Tensor* weight : {&w1, &b1, &w2, &b2}) {
    check_same_dtype(kOp, "weights", *weight, rows);
    check_same_device(kOp, "weights", *weight, rows);
  }
  check_same_device(kOp, "offsets", offsets, rows);
  check_activation(kOp, activation);
}

void check_grouped_mlp(const Tensor& rows, const Tensor& offsets, const Tensor& w1,
                       const Tensor& b1, const Tensor& w2, const Tensor& b2, int64_t activation) {
  check_experts(rows, offsets, w1, b1, w2, b2, activation);
  check_offsets("grouped_mlp", "offsets", offsets, rows.sym_size(0));
}

void check_grouped_mlp_backward(const Tensor& grad, const Tensor& rows, const Tensor& offsets,
                                const Tensor& hidden, const Tensor& w1, const Tensor& b1,
                                const Tensor& w2, int64_t activation) {
  constexpr const char* kOp = "grouped_mlp_backward";
  check_shape(kOp, "w1", w1, {-1, -1, -1});
  check_shape(kOp, "w2", w2, {-1, -1, -1});
  check_grouped_mlp(rows, offsets, w1, b1, w2,
                    at::empty_symint({w2.sym_size(0), w2.sym_size(2)}, w2.options()), activation);
  check_shape(kOp, "grad", grad, {rows.sym_size(0), rows.sym_size(1)});
  check_same_dtype(kOp, "grad", grad, rows);
  check_shape(kOp, "hidden", hidden, {rows.sym_size(0), w1.sym_size(2)});
  check_same_dtype(kOp, "hidden", hidden, rows);
  for (const Tensor* tensor : {&grad, &hidden}) {
    check_same_device(kOp, "every argument", *tensor, rows);
  }
}

namespace {

ForwardTensors forward_meta(const Tensor& rows, const Tensor& offsets, const Tensor& w1,
                            const Tensor& b1, const Tensor& w2, const Tensor& b2,
                            int64_t activation, bool keep_hidden, bool /*add_b2*/) {
  check_grouped_mlp(rows, offsets, w1, b1, w2, b2, activation);
  return {at::empty_like(rows),
          at::empty_symint({keep_hidden ? rows.sym_size(0) : c10::SymInt(0), w1.sym_size(2)},
                           rows.options())};
}

BackwardTensors backward_meta(const Tensor& grad, const Tensor& rows, const Tensor& offsets,
                              const Tensor& hidden, const Tensor& w1, const Tensor& b1,
                              const Tensor& w2, int64_t activation) {
  check_grouped_mlp_backward(grad, rows, offsets, hidden, w1, b1, w2, activation);
  const Tensor grad_hidden = at::empty_like(hidden);  // The kernel's, for a plan of memory to see.
  return {at::empty_like(rows), at::empty_like(w1), at::empty_like(b1), at::empty_like(w2),
          at::empty_symint({w2.sym_size(0), w2.sym_size(2)}, w2.options())};
}

class GroupedMlp : public torch::autograd::Function<GroupedMlp> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const Tensor& rows, const Tensor& offsets,
                                                const Tensor& w1, const Tensor& b1,
                                                const Tensor& w2, const Tensor& b2,
                                                int64_t activation, bool add_b2) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [y, hidden] = call_forward(rows, offsets, w1, b1, w2, b2, activation, true, add_b2);
    context->save_for_backward({rows, offsets, hidden, w1, b1, w2});
    context->saved_data["activation"] = activation;
    context->mark_non_differentiable({hidden});
    // Zeros for what has no gradient would be written at every step.
    context->set_materialize_grads(false);
    return {y, hidden};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    if (!grads[0].defined()) return torch::autograd::variable_list(8);
    const auto saved = context->get_saved_variables();
    auto [rows, w1, b1, w2, b2] =
        call_backward(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5],
                      context->saved_data["activation"].toInt());
    return {rows, {}, w1, b1, w2, b2, {}, {}};
  }
};

bool needs_gradient(const Tensor& rows, const ExpertWeights& weights) {
  return at::GradMode::is_enabled() &&
         (rows.requires_grad() || weights.w1.requires_grad() || weights.b1.requires_grad() ||
          weights.w2.requires_grad() || weights.b2.requires_grad());
}

ForwardTensors forward_autograd(const Tensor& rows, const Tensor& offsets, const Tensor& w1,
                                const Tensor& b1, const Tensor& w2, const Tensor& b2,
                                int64_t activation, bool keep_hidden, bool add_b2) {
  if (!needs_gradient(rows, {w1, b1, w2, b2})) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return call_forward(rows, offsets, w1, b1, w2, b2, activation, keep_hidden, add_b2);
  }
  const auto out = GroupedMlp::apply(rows, offsets, w1, b1, w2, b2, activation, add_b2);
  return {out[0], out[1]};
}

TORCH_LIBRARY_IMPL(moesaic, Meta, m) {
  m.impl("grouped_mlp", forward_meta);
  m.impl("grouped_mlp_backward", backward_meta);
}
TORCH_LIBRARY_IMPL(moesaic, Autograd, m) {
  m.impl("grouped_mlp", forward_autograd);
  // A second derivative throws instead of counting as 0.
  m.impl("grouped_mlp_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace ops

at::Tensor apply_activation(const at::Tensor& z, Activation activation) {
  switch (activation) {
    case Activation::relu:
      return at::relu(z);
    case Activation::gelu_tanh:
      return at::gelu(z, "tanh");
    case Activation::gelu:
      return at::gelu(z);
    case Activation::cubic:
      return at::pow(z, 3);
    case Activation::identity:
      return z;
    case Activation::celu:
      return at::celu(z);
    case Activation::tanh:
      return at::tanh(z);
  }
  fail("unknown activation {}", static_cast<int>(activation));
}

Activation activation_from_name(std::string_view name) {
  for (size_t i = 0; i < kActivationNames.size(); ++i) {
    if (name == kActivationNames[i]) return static_cast<Activation>(i);
  }
  const std::vector<std::string> names(kActivationNames.begin(), kActivationNames.end());
  fail_usage("unknown activation '{}'; {}", name, did_you_mean(name, names));
}

at::Tensor grouped_mlp(const at::Tensor& rows_Ad, const at::Tensor& offsets_K,
                       const ExpertWeights& weights, Activation activation) {
  return std::get<0>(ops::call_forward(rows_Ad, offsets_K, weights.w1, weights.b1, weights.w2,
                                       weights.b2, static_cast<int64_t>(activation),
                                       /*keep_hidden=*/false, /*add_b2=*/true));
}

at::Tensor ops::grouped_mlp_before_bias(const at::Tensor& rows, const at::Tensor& offsets,
                                        const ExpertWeights& weights, Activation activation) {
  return std::get<0>(call_forward(rows, offsets, weights.w1, weights.b1, weights.w2, weights.b2,
                                  static_cast<int64_t>(activation), /*keep_hidden=*/false,
                                  /*add_b2=*/false));
}

}  // namespace moesaic
