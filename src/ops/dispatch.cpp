// SPDX-License-Identifier: Apache-2.0
// Dispatch: schema, checks, shape function and gradient. Its gradient is the unweighted combine,
// see cpu/move_rows.cpp.
#include "moesaic/ops/dispatch.h"

#include <torch/library.h>
#include <torch/torch.h>

#include "check.h"
#include "mlp_operators.h"
#include "moesaic/base/error.h"

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

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  define<DispatchOperator, dispatch_shapes, DispatchOperator::apply<Dispatch>>(
      m,
      "dispatch(Tensor x, Tensor offsets, Tensor token, Tensor token_offsets, Tensor token_row) "
      "-> Tensor");
  define_gradient<DispatchBackward, dispatch_backward_shapes>(
      m, "dispatch_backward(Tensor grad_rows, Tensor token_offsets, Tensor token_row) -> Tensor");
}

}  // namespace
}  // namespace ops

at::Tensor dispatch(const at::Tensor& x_Td, const Routing& routing) {
  return ops::DispatchOperator::call(x_Td, routing.offsets, routing.token, routing.token_offsets,
                                     routing.token_row);
}

}  // namespace moesaic
