// SPDX-License-Identifier: Apache-2.0
// Dispatch, experts and combine in one: schema, checks and shape function. The gradient is that of
// the three operators.
#include "moesaic/ops/routed_mlp.h"

#include <torch/library.h>
#include <torch/torch.h>

#include "bias_in_combine.h"
#include "check.h"
#include "cpu/packed_experts.h"
#include "moesaic/base/error.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"

namespace moesaic {
namespace ops {
namespace {

using at::Tensor;
using Signature = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                         int64_t, bool);

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def(
      "routed_mlp(Tensor x, Tensor offsets, Tensor token, Tensor gate, Tensor token_offsets, "
      "Tensor token_row, Tensor w1, Tensor b1, Tensor w2, Tensor b2, int activation=1, "
      "bool packed=False) -> Tensor");
}

Tensor call_routed_mlp(const Tensor& x, const Routing& routing, const ExpertWeights& weights,
                       int64_t activation) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("moesaic::routed_mlp", "").typed<Signature>();
  return op.call(x, routing.offsets, routing.token, routing.gate, routing.token_offsets,
                 routing.token_row, weights.w1, weights.b1, weights.w2, weights.b2, activation,
                 weights.packed);
}

}  // namespace

void check_routed_mlp(const Tensor& x, const Tensor& offsets, const Tensor& token,
                      const Tensor& gate, const Tensor& token_offsets, const Tensor& token_row,
                      const Tensor& w1, const Tensor& b1, const Tensor& w2, const Tensor& b2,
                      int64_t activation) {
  check_dispatch(x, offsets, token, token_offsets, token_row);
  check_shape("routed_mlp", "gate", gate, {token.sym_size(0)});
  check_gate("routed_mlp", gate, x);
  check_same_device("routed_mlp", "gate", gate, x);
  check_experts(x, offsets, w1, b1, w2, b2, activation);
}

namespace {

Tensor routed_mlp_meta(const Tensor& x, const Tensor& offsets, const Tensor& token,
                       const Tensor& gate, const Tensor& token_offsets, const Tensor& token_row,
                       const Tensor& w1, const Tensor& b1, const Tensor& w2, const Tensor& b2,
                       int64_t activation, bool packed) {
  check_routed_mlp(x, offsets, token, gate, token_offsets, token_row, w1, b1, w2, b2, activation);
  return at::empty_symint(x.sym_sizes(), x.options());
}

/// Runs the three operators, for gradients and on devices without a fused kernel. The CPU adds the
/// last bias within its products, other devices within combine.
Tensor in_three_steps(const Tensor& x, const Tensor& offsets, const Tensor& token,
                      const Tensor& gate, const Tensor& token_offsets, const Tensor& token_row,
                      const Tensor& w1, const Tensor& b1, const Tensor& w2, const Tensor& b2,
                      int64_t activation, bool packed) {
  if (packed) fail("routed_mlp: packed weights are for the CPU, without gradients");
  const Routing routing{offsets, token, gate, token_offsets, token_row, {}};
  const ExpertWeights weights{w1, b1, w2, b2};
  const auto kind = static_cast<Activation>(activation);
  const Tensor rows = dispatch(x, routing);
  if (x.is_cpu()) return combine(grouped_mlp(rows, offsets, weights, kind), routing);
  return combine_with_bias(grouped_mlp_before_bias(rows, offsets, weights, kind), b2.detach(),
                           routing);
}

Tensor routed_mlp_autograd(const Tensor& x, const Tensor& offsets, const Tensor& token,
                           const Tensor& gate, const Tensor& token_offsets, const Tensor& token_row,
                           const Tensor& w1, const Tensor& b1, const Tensor& w2, const Tensor& b2,
                           int64_t activation, bool packed) {
  bool wants_gradient = false;
  for (const Tensor* tensor : {&x, &gate, &w1, &b1, &w2, &b2}) {
    wants_gradient |= at::GradMode::is_enabled() && tensor->requires_grad();
  }
  if (wants_gradient) {
    return in_three_steps(x, offsets, token, gate, token_offsets, token_row, w1, b1, w2, b2,
                          activation, packed);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call_routed_mlp(x, {offsets, token, gate, token_offsets, token_row, {}},
                         {w1, b1, w2, b2, packed}, activation);
}

TORCH_LIBRARY_IMPL(moesaic, Meta, m) {
  m.impl("routed_mlp", routed_mlp_meta);
}
TORCH_LIBRARY_IMPL(moesaic, Autograd, m) {
  m.impl("routed_mlp", routed_mlp_autograd);
}
TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("routed_mlp", in_three_steps);
}

}  // namespace
}  // namespace ops

at::Tensor routed_mlp(const at::Tensor& x_Td, const Routing& routing, const ExpertWeights& weights,
                      Activation activation) {
  return ops::call_routed_mlp(x_Td, routing, weights, static_cast<int64_t>(activation));
}

ExpertWeights pack_experts(const ExpertWeights& weights) {
  const at::NoGradGuard no_grad;
  return weights.packed ? weights : ops::pack_experts_cpu(weights);
}

}  // namespace moesaic
