// SPDX-License-Identifier: Apache-2.0
// Dispatch: schema, checks, shape function and gradient. Its gradient is the unweighted combine,
// see cpu/dispatch.cpp.
#include "moesaic/ops/dispatch.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "check.h"
#include "moesaic/base/error.h"

namespace moesaic {
namespace ops {
namespace {

using DispatchSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                     const at::Tensor&, const at::Tensor&);
using DispatchBackwardSignature = at::Tensor(const at::Tensor&, const at::Tensor&,
                                             const at::Tensor&);

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def(
      "dispatch(Tensor x, Tensor offsets, Tensor token, Tensor token_offsets, Tensor token_row) "
      "-> Tensor");
  m.def("dispatch_backward(Tensor grad_rows, Tensor token_offsets, Tensor token_row) -> Tensor");
}

at::Tensor call_dispatch(const at::Tensor& x, const at::Tensor& offsets, const at::Tensor& token,
                         const at::Tensor& token_offsets, const at::Tensor& token_row) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::dispatch", "")
                             .typed<DispatchSignature>();
  return op.call(x, offsets, token, token_offsets, token_row);
}

at::Tensor call_dispatch_backward(const at::Tensor& grad_rows, const at::Tensor& token_offsets,
                                  const at::Tensor& token_row) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::dispatch_backward", "")
                             .typed<DispatchBackwardSignature>();
  return op.call(grad_rows, token_offsets, token_row);
}

}  // namespace

void check_dispatch(const at::Tensor& x, const at::Tensor& offsets, const at::Tensor& token,
                    const at::Tensor& token_offsets, const at::Tensor& token_row) {
  constexpr const char* kOp = "dispatch";
  for (const auto* index : {&offsets, &token, &token_offsets, &token_row}) {
    check_shape(kOp, "each index of the routing", *index, {-1});
    check_index(kOp, "each index of the routing", *index);
    check_same_device(kOp, "the routing", *index, x);
  }
  if (offsets.sym_size(0) < 1) fail("dispatch: offsets must not be empty");
  if (token_offsets.sym_size(0) < 1) fail("dispatch: token_offsets must not be empty");
  check_shape(kOp, "x", x, {token_offsets.sym_size(0) - 1, -1});
  check_values(kOp, "x", x);
  check_shape(kOp, "token_row", token_row, {token.sym_size(0)});
  check_offsets(kOp, "offsets", offsets, token.sym_size(0));
  check_values_between(kOp, "token", token, 0, x.sym_size(0).max(1));
  check_offsets(kOp, "token_offsets", token_offsets, token_row.sym_size(0));
  check_values_between(kOp, "token_row", token_row, 0, token.sym_size(0).max(1));
}

void check_dispatch_backward(const at::Tensor& grad_rows, const at::Tensor& token_offsets,
                             const at::Tensor& token_row) {
  constexpr const char* kOp = "dispatch_backward";
  for (const auto* index : {&token_offsets, &token_row}) {
    check_shape(kOp, "each index of the routing", *index, {-1});
    check_index(kOp, "each index of the routing", *index);
    check_same_device(kOp, "the routing", *index, grad_rows);
  }
  if (token_offsets.sym_size(0) < 1) fail("dispatch_backward: token_offsets must not be empty");
  check_shape(kOp, "grad_rows", grad_rows, {token_row.sym_size(0), -1});
  check_values(kOp, "grad_rows", grad_rows);
  check_offsets(kOp, "token_offsets", token_offsets, token_row.sym_size(0));
  check_values_between(kOp, "token_row", token_row, 0, grad_rows.sym_size(0).max(1));
}

namespace {

at::Tensor dispatch_meta(const at::Tensor& x, const at::Tensor& offsets, const at::Tensor& token,
                         const at::Tensor& token_offsets, const at::Tensor& token_row) {
  check_dispatch(x, offsets, token, token_offsets, token_row);
  return at::empty_symint({token.sym_size(0), x.sym_size(1)}, x.options());
}

at::Tensor dispatch_backward_meta(const at::Tensor& grad_rows, const at::Tensor& token_offsets,
                                  const at::Tensor& token_row) {
  check_dispatch_backward(grad_rows, token_offsets, token_row);
  return at::empty_symint({token_offsets.sym_size(0) - 1, grad_rows.sym_size(1)},
                          grad_rows.options());
}

class Dispatch : public torch::autograd::Function<Dispatch> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& offsets, const at::Tensor& token,
                            const at::Tensor& token_offsets, const at::Tensor& token_row) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({token_offsets, token_row});
    return call_dispatch(x, offsets, token, token_offsets, token_row);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {call_dispatch_backward(grads[0], saved[0], saved[1]), {}, {}, {}, {}};
  }
};

at::Tensor dispatch_autograd(const at::Tensor& x, const at::Tensor& offsets,
                             const at::Tensor& token, const at::Tensor& token_offsets,
                             const at::Tensor& token_row) {
  return Dispatch::apply(x, offsets, token, token_offsets, token_row);
}

TORCH_LIBRARY_IMPL(moesaic, Meta, m) {
  m.impl("dispatch", dispatch_meta);
  m.impl("dispatch_backward", dispatch_backward_meta);
}
TORCH_LIBRARY_IMPL(moesaic, Autograd, m) {
  m.impl("dispatch", dispatch_autograd);
  // A second derivative throws instead of counting as 0.
  m.impl("dispatch_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace ops

at::Tensor dispatch(const at::Tensor& x_Td, const Routing& routing) {
  return ops::call_dispatch(x_Td, routing.offsets, routing.token, routing.token_offsets,
                            routing.token_row);
}

}  // namespace moesaic
