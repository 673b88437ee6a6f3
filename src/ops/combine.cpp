// SPDX-License-Identifier: Apache-2.0
// Combine: schema, checks, shape function and gradient. The kernels are cpu/combine.cpp and its
// siblings.
#include "moesaic/ops/combine.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "bias_in_combine.h"
#include "check.h"
#include "moesaic/base/error.h"

namespace moesaic {
namespace ops {
namespace {

using OptionalIn = const OptionalTensor&;
using CombineSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                    const at::Tensor&, OptionalIn, OptionalIn);
using CombineBackwardSignature = std::tuple<at::Tensor, at::Tensor>(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
    OptionalIn, OptionalIn);

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  // `bias` [K, d] is added to the rows of its expert, which `offsets` [K + 1] tell. It is a
  // constant here: its gradient is the rows' and comes from grouped_mlp without `add_b2`.
  m.def(
      "combine(Tensor rows, Tensor gate, Tensor token_offsets, Tensor token_row, "
      "Tensor? offsets=None, Tensor? bias=None) -> Tensor");
  m.def(
      "combine_backward(Tensor grad, Tensor rows, Tensor gate, Tensor token_offsets, "
      "Tensor token_row, Tensor? offsets=None, Tensor? bias=None) -> (Tensor, Tensor)");
}

at::Tensor call_combine(const at::Tensor& rows, const at::Tensor& gate,
                        const at::Tensor& token_offsets, const at::Tensor& token_row,
                        OptionalIn offsets, OptionalIn bias) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::combine", "")
                             .typed<CombineSignature>();
  return op.call(rows, gate, token_offsets, token_row, offsets, bias);
}

std::tuple<at::Tensor, at::Tensor> call_combine_backward(const at::Tensor& grad,
                                                         const at::Tensor& rows,
                                                         const at::Tensor& gate,
                                                         const at::Tensor& token_offsets,
                                                         const at::Tensor& token_row,
                                                         OptionalIn offsets, OptionalIn bias) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::combine_backward", "")
                             .typed<CombineBackwardSignature>();
  return op.call(grad, rows, gate, token_offsets, token_row, offsets, bias);
}

}  // namespace

void check_combine(const at::Tensor& rows, const at::Tensor& gate, const at::Tensor& token_offsets,
                   const at::Tensor& token_row, OptionalIn offsets, OptionalIn bias) {
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
  if (!bias.has_value()) return;
  if (!offsets.has_value()) fail("combine: a bias needs the offsets of the experts' rows");
  check_shape(kOp, "bias", *bias, {-1, rows.sym_size(1)});
  check_same_dtype(kOp, "bias", *bias, rows);
  check_same_device(kOp, "bias", *bias, rows);
  check_shape(kOp, "offsets", *offsets, {bias->sym_size(0) + 1});
  check_index(kOp, "offsets", *offsets);
  check_same_device(kOp, "offsets", *offsets, rows);
  check_offsets(kOp, "offsets", *offsets, rows.sym_size(0));
}

void check_combine_backward(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& gate,
                            const at::Tensor& token_offsets, const at::Tensor& token_row,
                            OptionalIn offsets, OptionalIn bias) {
  check_combine(rows, gate, token_offsets, token_row, offsets, bias);
  check_shape("combine_backward", "grad", grad, {token_offsets.sym_size(0) - 1, rows.sym_size(1)});
  check_same_dtype("combine_backward", "grad", grad, rows);
  check_same_device("combine_backward", "grad", grad, rows);
}

namespace {

at::Tensor combine_meta(const at::Tensor& rows, const at::Tensor& gate,
                        const at::Tensor& token_offsets, const at::Tensor& token_row,
                        OptionalIn offsets, OptionalIn bias) {
  check_combine(rows, gate, token_offsets, token_row, offsets, bias);
  return at::empty_symint({token_offsets.sym_size(0) - 1, rows.sym_size(1)}, rows.options());
}

std::tuple<at::Tensor, at::Tensor> combine_backward_meta(const at::Tensor& grad,
                                                         const at::Tensor& rows,
                                                         const at::Tensor& gate,
                                                         const at::Tensor& token_offsets,
                                                         const at::Tensor& token_row,
                                                         OptionalIn offsets, OptionalIn bias) {
  check_combine_backward(grad, rows, gate, token_offsets, token_row, offsets, bias);
  return {at::empty_like(rows), at::empty_like(gate)};
}

class Combine : public torch::autograd::Function<Combine> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& gate, const at::Tensor& token_offsets,
                            const at::Tensor& token_row, OptionalIn offsets, OptionalIn bias) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({rows, gate, token_offsets, token_row,
                                offsets.value_or(at::Tensor()), bias.value_or(at::Tensor())});
    return call_combine(rows, gate, token_offsets, token_row, offsets, bias);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto given = [&](size_t i) {
      return saved[i].defined() ? OptionalTensor(saved[i]) : std::nullopt;
    };
    auto [grad_rows, grad_gate] =
        call_combine_backward(grads[0], saved[0], saved[1], saved[2], saved[3], given(4), given(5));
    return {grad_rows, grad_gate, {}, {}, {}, {}};
  }
};

at::Tensor combine_autograd(const at::Tensor& rows, const at::Tensor& gate,
                            const at::Tensor& token_offsets, const at::Tensor& token_row,
                            OptionalIn offsets, OptionalIn bias) {
  if (bias.has_value() && bias->requires_grad() && at::GradMode::is_enabled()) {
    fail("combine: bias is a constant, whose gradient grouped_mlp(add_b2=False) gives: detach it");
  }
  return Combine::apply(rows, gate, token_offsets, token_row, offsets, bias);
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

at::Tensor ops::combine_with_bias(const at::Tensor& rows, const at::Tensor& bias,
                                  const Routing& routing) {
  return call_combine(rows, routing.gate, routing.token_offsets, routing.token_row, routing.offsets,
                      bias);
}

at::Tensor combine(const at::Tensor& rows_Ad, const Routing& routing) {
  return ops::call_combine(rows_Ad, routing.gate, routing.token_offsets, routing.token_row, {}, {});
}

}  // namespace moesaic
