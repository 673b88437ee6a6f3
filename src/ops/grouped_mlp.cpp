// SPDX-License-Identifier: Apache-2.0
// Grouped MLP: schema, checks, shape function and gradient. The kernels are cpu/grouped_mlp.cpp and
// its siblings.
#include "moesaic/ops/grouped_mlp.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "check.h"
#include "mlp_operators.h"
#include "moesaic/ops/enum_names.h"

namespace moesaic {
namespace ops {

using at::Tensor;

void check_experts(const GroupedMlpArguments& in) {
  constexpr const char* kOp = "grouped_mlp";
  check_shape(kOp, "rows", in.rows, {-1, -1});
  check_values(kOp, "rows", in.rows);
  check_index(kOp, "offsets", in.offsets, {-1}, in.rows);
  if (in.offsets.sym_size(0) < 1) fail("grouped_mlp: offsets must not be empty");
  const c10::SymInt experts = in.offsets.sym_size(0) - 1;
  const c10::SymInt width = in.rows.sym_size(1);
  if (width < 1)
    fail("grouped_mlp: rows must have a column, their shape is {}", c10::str(in.rows.sym_sizes()));
  check_like(kOp, "w1", in.w1, {experts, width, -1}, in.rows);
  const c10::SymInt hidden = in.w1.sym_size(2);
  if (hidden < 1) {
    fail("grouped_mlp: w1 must have a column, its shape is {}", c10::str(in.w1.sym_sizes()));
  }
  check_like(kOp, "b1", in.b1, {experts, hidden}, in.rows);
  check_like(kOp, "w2", in.w2, {experts, hidden, width}, in.rows);
  check_like(kOp, "b2", in.b2, {experts, width}, in.rows);
  check_activation(kOp, in.activation);
}

void check(const GroupedMlpArguments& in) {
  check_experts(in);
  check_offsets("grouped_mlp", "offsets", in.offsets, in.rows.sym_size(0));
}

void check(const GroupedMlpBackwardArguments& in) {
  constexpr const char* kOp = "grouped_mlp_backward";
  check_shape(kOp, "w1", in.w1, {-1, -1, -1});
  check_shape(kOp, "w2", in.w2, {-1, -1, -1});
  const Tensor b2 = at::empty_symint({in.w2.sym_size(0), in.w2.sym_size(2)}, in.w2.options());
  check(GroupedMlpArguments{in.rows, in.offsets, in.w1, in.b1, in.w2, b2, in.activation});
  check_like(kOp, "grad", in.grad, {in.rows.sym_size(0), in.rows.sym_size(1)}, in.rows);
  check_like(kOp, "hidden", in.hidden, {in.rows.sym_size(0), in.w1.sym_size(2)}, in.rows);
}

namespace {

std::tuple<Tensor, Tensor> grouped_mlp_shapes(const GroupedMlpArguments& in) {
  return {
      at::empty_like(in.rows),
      at::empty_symint({in.keep_hidden ? in.rows.sym_size(0) : c10::SymInt(0), in.w1.sym_size(2)},
                       in.rows.options())};
}

GroupedMlpGradients grouped_mlp_backward_shapes(const GroupedMlpBackwardArguments& in) {
  const Tensor grad_hidden = at::empty_like(in.hidden);  // The kernel's, for a plan of memory.
  return {at::empty_like(in.rows), at::empty_like(in.w1), at::empty_like(in.b1),
          at::empty_like(in.w2),
          at::empty_symint({in.w2.sym_size(0), in.w2.sym_size(2)}, in.w2.options())};
}

class GroupedMlp : public torch::autograd::Function<GroupedMlp> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const auto&... arguments) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const GroupedMlpArguments in{arguments...};
    auto [y, hidden] = GroupedMlpOperator::call(arguments...);
    context->save_for_backward({in.rows, in.offsets, hidden, in.w1, in.b1, in.w2});
    context->saved_data["activation"] = in.activation;
    context->mark_non_differentiable({hidden});
    // Zeros for what has no gradient would be written at every step.
    context->set_materialize_grads(false);
    return {y, hidden};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    if (!grads[0].defined()) return torch::autograd::variable_list(9);
    const auto saved = context->get_saved_variables();
    auto [rows, w1, b1, w2, b2] =
        GroupedMlpBackward::call(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4],
                                 saved[5], context->saved_data["activation"].toInt());
    return {rows, {}, w1, b1, w2, b2, {}, {}, {}};
  }
};

std::tuple<Tensor, Tensor> grouped_mlp_autograd(TensorIn rows, TensorIn offsets, TensorIn w1,
                                                TensorIn b1, TensorIn w2, TensorIn b2,
                                                int64_t activation, bool keep_hidden, bool add_b2) {
  if (!torch::autograd::compute_requires_grad(rows, w1, b1, w2, b2)) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return GroupedMlpOperator::call(rows, offsets, w1, b1, w2, b2, activation, keep_hidden, add_b2);
  }
  const auto out = GroupedMlp::apply(rows, offsets, w1, b1, w2, b2, activation,
                                     /*keep_hidden=*/true, add_b2);
  return {out[0], out[1]};
}

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  // `hidden` is for the backward pass: the activation's inputs, on a GPU without their bias;
  // without `keep_hidden` it is empty unless a gradient is required. Without `add_b2` y lacks the
  // last bias, whose gradient is what it would have been: see grouped_mlp_before_bias().
  define<GroupedMlpOperator, grouped_mlp_shapes, grouped_mlp_autograd>(
      m,
      "grouped_mlp(Tensor rows, Tensor offsets, Tensor w1, Tensor b1, Tensor w2, Tensor b2, "
      "int activation=1, bool keep_hidden=False, bool add_b2=True) -> (Tensor y, Tensor hidden)");
  define<GroupedMlpBackward, grouped_mlp_backward_shapes>(
      m,
      "grouped_mlp_backward(Tensor grad, Tensor rows, Tensor offsets, Tensor hidden, Tensor w1, "
      "Tensor b1, Tensor w2, int activation) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
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
  return ops::enum_from_name<Activation>("activation", name,
                                         {kActivationNames.begin(), kActivationNames.end()});
}

at::Tensor grouped_mlp(const at::Tensor& rows_Ad, const at::Tensor& offsets_K,
                       const ExpertWeights& weights, Activation activation) {
  return std::get<0>(ops::GroupedMlpOperator::call(
      rows_Ad, offsets_K, weights.w1, weights.b1, weights.w2, weights.b2,
      static_cast<int64_t>(activation), /*keep_hidden=*/false, /*add_b2=*/true));
}

at::Tensor ops::grouped_mlp_before_bias(const at::Tensor& rows, const at::Tensor& offsets,
                                        const ExpertWeights& weights, Activation activation) {
  return std::get<0>(GroupedMlpOperator::call(rows, offsets, weights.w1, weights.b1, weights.w2,
                                              weights.b2, static_cast<int64_t>(activation),
                                              /*keep_hidden=*/false, /*add_b2=*/false));
}

}  // namespace moesaic
