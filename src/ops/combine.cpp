// SPDX-License-Identifier: Apache-2.0
// Combine: schema, checks, shape function and gradient. The kernels are cpu/combine.cpp and its
// siblings.
#include "moesaic/ops/combine.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "check.h"
#include "moesaic/base/error.h"

namespace moesaic {
namespace ops {
namespace {

using CombineSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                    const at::Tensor&);
using CombineBackwardSignature = std::tuple<at::Tensor, at::Tensor>(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&);

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def("combine(Tensor rows, Tensor gate, Tensor token_offsets, Tensor token_row) -> Tensor");
  m.def(
      "combine_backward(Tensor grad, Tensor rows, Tensor gate, Tensor token_offsets, "
      "Tensor token_row) -> (Tensor, Tensor)");
}

at::Tensor call_combine(const at::Tensor& rows, const at::Tensor& gate,
                        const at::Tensor& token_offsets, const at::Tensor& token_row) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::combine", "")
                             .typed<CombineSignature>();
  return op.call(rows, gate, token_offsets, token_row);
}

std::tuple<at::Tensor, at::Tensor> call_combine_backward(const at::Tensor& grad,
                                                         const at::Tensor& rows,
                                                         const at::Tensor& gate,
                                                         const at::Tensor& token_offsets,
                                                         const at::Tensor& token_row) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::combine_backward", "")
                             .typed<CombineBackwardSignature>();
  return op.call(grad, rows, gate, token_offsets, token_row);
}

}  // namespace

void check_combine(const at::Tensor& rows, const at::Tensor& gate, const at::Tensor& token_offsets,
                   const at::Tensor& token_row) {
  constexpr const char* kOp = "combine";
  check_shape(kOp, "gate", gate, {-1});
  check_shape(kOp, "rows", rows, {gate.sym_size(0), -1});
  check_values(kOp, "rows", rows);
  check_gate(kOp, gate, rows);
  check_same_device(kOp, "gate", gate, rows);
  for (const auto* index : {&token_offsets, &token_row}) {
    check_shape(kOp, "each index of the routing", *index, {-1});
    check_index(kOp, "each index of the routing", *index);
    check_same_device(kOp, "the routing", *index, rows);
  }
  if (token_offsets.sym_size(0) < 1) fail("combine: token_offsets must not be empty");
  check_shape(kOp, "token_row", token_row, {gate.sym_size(0)});
  check_offsets(kOp, "token_offsets", token_offsets, token_row.sym_size(0));
  check_values_between(kOp, "token_row", token_row, 0, rows.sym_size(0).max(1));
}

void check_combine_backward(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& gate,
                            const at::Tensor& token_offsets, const at::Tensor& token_row) {
  check_combine(rows, gate, token_offsets, token_row);
  check_shape("combine_backward", "grad", grad, {token_offsets.sym_size(0) - 1, rows.sym_size(1)});
  check_same_dtype("combine_backward", "grad", grad, rows);
  check_same_device("combine_backward", "grad", grad, rows);
}

namespace {

at::Tensor combine_meta(const at::Tensor& rows, const at::Tensor& gate,
                        const at::Tensor& token_offsets, const at::Tensor& token_row) {
  check_combine(rows, gate, token_offsets, token_row);
  return at::empty_symint({token_offsets.sym_size(0) - 1, rows.sym_size(1)}, rows.options());
}

std::tuple<at::Tensor, at::Tensor> combine_backward_meta(const at::Tensor& grad,
                                                         const at::Tensor& rows,
                                                         const at::Tensor& gate,
                                                         const at::Tensor& token_offsets,
                                                         const at::Tensor& token_row) {
  check_combine_backward(grad, rows, gate, token_offsets, token_row);
  return {at::empty_like(rows), at::empty_like(gate)};
}

class Combine : public torch::autograd::Function<Combine> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& gate, const at::Tensor& token_offsets,
                            const at::Tensor& token_row) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({rows, gate, token_offsets, token_row});
    return call_combine(rows, gate, token_offsets, token_row);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    auto [grad_rows, grad_gate] =
        call_combine_backward(grads[0], saved[0], saved[1], saved[2], saved[3]);
    return {grad_rows, grad_gate, {}, {}};
  }
};

at::Tensor combine_autograd(const at::Tensor& rows, const at::Tensor& gate,
                            const at::Tensor& token_offsets, const at::Tensor& token_row) {
  return Combine::apply(rows, gate, token_offsets, token_row);
}

TORCH_LIBRARY_IMPL(moesaic, Meta, m) {
  m.impl("combine", combine_meta);
  m.impl("combine_backward", combine_backward_meta);
}
TORCH_LIBRARY_IMPL(moesaic, Autograd, m) {
  m.impl("combine", combine_autograd);
  // A second derivative throws instead of counting as 0.
  m.impl("combine_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace ops

at::Tensor combine(const at::Tensor& rows_Ad, const Routing& routing) {
  return ops::call_combine(rows_Ad, routing.gate, routing.token_offsets, routing.token_row);
}

}  // namespace moesaic
