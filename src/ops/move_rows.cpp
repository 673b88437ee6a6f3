// SPDX-License-Identifier: Apache-2.0
// Dispatch and combine: schemas, checks, shape functions and gradients. The gradient of dispatch is
// the unweighted combine. The kernels are cpu/move_rows.cpp and cuda/move_rows_on.h.
#include <torch/library.h>
#include <torch/torch.h>

#include "check.h"
#include "mlp_operators.h"
#include "moesaic/base/error.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"

namespace moesaic {
namespace ops {

void check(const DispatchArguments& in) {
  constexpr const char* kOp = "dispatch";
  check_indices(kOp, {&in.offsets, &in.token, &in.token_offsets, &in.token_row}, in.x);
  if (in.offsets.sym_size(0) < 1) fail("dispatch: offsets must not be empty");
  if (in.token_offsets.sym_size(0) < 1) fail("dispatch: token_offsets must not be empty");
  check_shape(kOp, "x", in.x, {in.token_offsets.sym_size(0) - 1, -1});
  check_values(kOp, "x", in.x);
  check_shape(kOp, "token_row", in.token_row, {in.token.sym_size(0)});
  check_offsets(kOp, "offsets", in.offsets, in.token.sym_size(0));
  check_values_between(kOp, "token", in.token, 0, in.x.sym_size(0).max(1));
  check_offsets(kOp, "token_offsets", in.token_offsets, in.token_row.sym_size(0));
  check_values_between(kOp, "token_row", in.token_row, 0, in.token.sym_size(0).max(1));
}

void check(const DispatchBackwardArguments& in) {
  constexpr const char* kOp = "dispatch_backward";
  check_indices(kOp, {&in.token_offsets, &in.token_row}, in.grad_rows);
  if (in.token_offsets.sym_size(0) < 1) fail("dispatch_backward: token_offsets must not be empty");
  check_shape(kOp, "grad_rows", in.grad_rows, {in.token_row.sym_size(0), -1});
  check_values(kOp, "grad_rows", in.grad_rows);
  check_offsets(kOp, "token_offsets", in.token_offsets, in.token_row.sym_size(0));
  check_values_between(kOp, "token_row", in.token_row, 0, in.grad_rows.sym_size(0).max(1));
}

void check(const CombineArguments& in) {
  constexpr const char* kOp = "combine";
  check_shape(kOp, "gate", in.gate, {-1});
  check_shape(kOp, "rows", in.rows, {in.gate.sym_size(0), -1});
  check_values(kOp, "rows", in.rows);
  check_gate(kOp, in.gate, in.rows);
  check_same_device(kOp, "gate", in.gate, in.rows);
  check_indices(kOp, {&in.token_offsets, &in.token_row}, in.rows);
  if (in.token_offsets.sym_size(0) < 1) fail("combine: token_offsets must not be empty");
  check_shape(kOp, "token_row", in.token_row, {in.gate.sym_size(0)});
  check_offsets(kOp, "token_offsets", in.token_offsets, in.token_row.sym_size(0));
  check_values_between(kOp, "token_row", in.token_row, 0, in.rows.sym_size(0).max(1));
  if (!in.bias.has_value()) return;
  if (!in.offsets.has_value()) fail("combine: a bias needs the offsets of the experts' rows");
  check_like(kOp, "bias", *in.bias, {-1, in.rows.sym_size(1)}, in.rows);
  check_index(kOp, "offsets", *in.offsets, {in.bias->sym_size(0) + 1}, in.rows);
  check_offsets(kOp, "offsets", *in.offsets, in.rows.sym_size(0));
}

void check(const CombineBackwardArguments& in) {
  check(in.of);
  check_like("combine_backward", "grad", in.grad,
             {in.of.token_offsets.sym_size(0) - 1, in.of.rows.sym_size(1)}, in.of.rows);
}

namespace {

at::Tensor dispatch_shapes(const DispatchArguments& in) {
  return at::empty_symint({in.token.sym_size(0), in.x.sym_size(1)}, in.x.options());
}

at::Tensor dispatch_backward_shapes(const DispatchBackwardArguments& in) {
  return at::empty_symint({in.token_offsets.sym_size(0) - 1, in.grad_rows.sym_size(1)},
                          in.grad_rows.options());
}

class Dispatch : public torch::autograd::Function<Dispatch> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const auto&... arguments) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const DispatchArguments in{arguments...};
    context->save_for_backward({in.token_offsets, in.token_row});
    return DispatchOperator::call(arguments...);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {DispatchBackward::call(grads[0], saved[0], saved[1]), {}, {}, {}, {}};
  }
};

at::Tensor combine_shapes(const CombineArguments& in) {
  return at::empty_symint({in.token_offsets.sym_size(0) - 1, in.rows.sym_size(1)},
                          in.rows.options());
}

std::tuple<at::Tensor, at::Tensor> combine_backward_shapes(const CombineBackwardArguments& in) {
  return {at::empty_like(in.of.rows), at::empty_like(in.of.gate)};
}

class Combine : public torch::autograd::Function<Combine> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const auto&... arguments) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const CombineArguments in{arguments...};
    context->save_for_backward({in.rows, in.gate, in.token_offsets, in.token_row,
                                in.offsets.value_or(at::Tensor()), in.bias.value_or(at::Tensor())});
    return CombineOperator::call(arguments...);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto given = [&](size_t i) {
      return saved[i].defined() ? OptionalTensor(saved[i]) : std::nullopt;
    };
    auto [grad_rows, grad_gate] =
        CombineBackward::call(grads[0], saved[0], saved[1], saved[2], saved[3], given(4), given(5));
    return {grad_rows, grad_gate, {}, {}, {}, {}};
  }
};

at::Tensor combine_autograd(TensorIn rows, TensorIn gate, TensorIn token_offsets,
                            TensorIn token_row, OptionalIn offsets, OptionalIn bias) {
  if (bias.has_value() && bias->requires_grad() && at::GradMode::is_enabled()) {
    fail("combine: detach bias, whose gradient grouped_mlp(add_b2=False) gives");
  }
  return Combine::apply(rows, gate, token_offsets, token_row, offsets, bias);
}

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  define<DispatchOperator, dispatch_shapes, DispatchOperator::apply<Dispatch>>(
      m,
      "dispatch(Tensor x, Tensor offsets, Tensor token, Tensor token_offsets, Tensor token_row) "
      "-> Tensor");
  define<DispatchBackward, dispatch_backward_shapes>(
      m, "dispatch_backward(Tensor grad_rows, Tensor token_offsets, Tensor token_row) -> Tensor");
  // `bias` [K, d] is added to the rows of its expert, which `offsets` [K + 1] tell. It is a
  // constant here: its gradient is the rows' and comes from grouped_mlp without `add_b2`.
  define<CombineOperator, combine_shapes, combine_autograd>(
      m,
      "combine(Tensor rows, Tensor gate, Tensor token_offsets, Tensor token_row, "
      "Tensor? offsets=None, Tensor? bias=None) -> Tensor");
  define<CombineBackward, combine_backward_shapes>(
      m,
      "combine_backward(Tensor grad, Tensor rows, Tensor gate, Tensor token_offsets, "
      "Tensor token_row, Tensor? offsets=None, Tensor? bias=None) -> (Tensor, Tensor)");
}

}  // namespace
}  // namespace ops

at::Tensor dispatch(const at::Tensor& x_Td, const Routing& routing) {
  return ops::DispatchOperator::call(x_Td, routing.offsets, routing.token, routing.token_offsets,
                                     routing.token_row);
}

at::Tensor ops::combine_with_bias(const at::Tensor& rows, const at::Tensor& bias,
                                  const Routing& routing) {
  return CombineOperator::call(rows, routing.gate, routing.token_offsets, routing.token_row,
                               routing.offsets, bias);
}

at::Tensor combine(const at::Tensor& rows_Ad, const Routing& routing) {
  return ops::CombineOperator::call(rows_Ad, routing.gate, routing.token_offsets, routing.token_row,
                                    {}, {});
}

}  // namespace moesaic
