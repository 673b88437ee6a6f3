// SPDX-License-Identifier: Apache-2.0
// Dispatch, experts and combine in one: schema, checks and shape function. The gradient is that of
// the three operators.
#include "moesaic/ops/routed_mlp.h"

#include <torch/library.h>
#include <torch/torch.h>

#include "check.h"
#include "mlp_operators.h"
#include "moesaic/base/error.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"

namespace moesaic {
namespace ops {

void check(const RoutedMlpArguments& in) {
  check(DispatchArguments{in.x, in.offsets, in.token, in.token_offsets, in.token_row});
  check_shape("routed_mlp", "gate", in.gate, {in.token.sym_size(0)});
  check_gate("routed_mlp", in.gate, in.x);
  check_same_device("routed_mlp", "gate", in.gate, in.x);
  check_experts({in.x, in.offsets, in.w1, in.b1, in.w2, in.b2, in.activation});
}

namespace {

at::Tensor routed_mlp_shapes(const RoutedMlpArguments& in) {
  return at::empty_symint(in.x.sym_sizes(), in.x.options());
}

/// Runs the three operators, for gradients and on devices without a fused kernel. The CPU adds the
/// last bias within its products, other devices within combine.
at::Tensor in_three_steps(const RoutedMlpArguments& in) {
  if (in.packed) fail("routed_mlp: packed weights are for the CPU, without gradients");
  const Routing routing{in.offsets, in.token, in.gate, in.token_offsets, in.token_row, {}};
  const ExpertWeights weights{in.w1, in.b1, in.w2, in.b2};
  const auto kind = static_cast<Activation>(in.activation);
  const at::Tensor rows = dispatch(in.x, routing);
  if (in.x.is_cpu()) return combine(grouped_mlp(rows, in.offsets, weights, kind), routing);
  return combine_with_bias(grouped_mlp_before_bias(rows, in.offsets, weights, kind), in.b2.detach(),
                           routing);
}

struct RoutedMlp {
  static at::Tensor apply(const auto&... arguments) {
    const RoutedMlpArguments in{arguments...};
    if (wants_gradient({in.x, in.gate, in.w1, in.b1, in.w2, in.b2})) return in_three_steps(in);
    const at::AutoDispatchBelowADInplaceOrView guard;
    return RoutedMlpOperator::call(arguments...);
  }
};

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  define<RoutedMlpOperator, routed_mlp_shapes, RoutedMlpOperator::apply<RoutedMlp>>(
      m,
      "routed_mlp(Tensor x, Tensor offsets, Tensor token, Tensor gate, Tensor token_offsets, "
      "Tensor token_row, Tensor w1, Tensor b1, Tensor w2, Tensor b2, int activation=1, "
      "bool packed=False) -> Tensor");
}
TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("routed_mlp", RoutedMlpOperator::run<in_three_steps>);
}

}  // namespace
}  // namespace ops

at::Tensor routed_mlp(const at::Tensor& x_Td, const Routing& routing, const ExpertWeights& weights,
                      Activation activation) {
  return ops::RoutedMlpOperator::call(x_Td, routing.offsets, routing.token, routing.gate,
                                      routing.token_offsets, routing.token_row, weights.w1,
                                      weights.b1, weights.w2, weights.b2,
                                      static_cast<int64_t>(activation), weights.packed);
}

ExpertWeights pack_experts(const ExpertWeights& weights) {
  const at::NoGradGuard no_grad;
  return weights.packed ? weights : ops::pack_experts_cpu(weights);
}

}  // namespace moesaic
