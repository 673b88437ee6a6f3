// SPDX-License-Identifier: Apache-2.0
// Dispatch, experts and combine in one: schema, checks and shape function. The gradient is that of
// the three operators.
#include "moesaic/ops/routed_mlp.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <limits>

#include "check.h"
#include "mlp_operators.h"
#include "moesaic/base/error.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/device.h"
#include "moesaic/ops/dispatch.h"

namespace moesaic {
namespace ops {

void check(const RoutedMlpArguments& in) {
  check(DispatchArguments{in.x, in.offsets, in.token, in.token_offsets, in.token_row});
  check_shape("routed_mlp", "gate", in.gate, {in.token.sym_size(0)});
  check_gate("routed_mlp", in.gate, in.x);
  check_same_device("routed_mlp", "gate", in.gate, in.x);
  if (!in.w1_scale && !in.w2_scale) {
    return check_experts({in.x, in.offsets, in.w1, in.b1, in.w2, in.b2, in.activation});
  }
  for (const at::Tensor* weight : {&in.w1, &in.w2}) {
    if (!in.is_packed || weight->scalar_type() != at::kChar || in.x.scalar_type() != at::kFloat) {
      fail("routed_mlp: scales belong to float32 tokens and weights of quantise_experts()");
    }
  }
  const auto as_x = [&](const at::Tensor& weight) {
    return in.x.new_empty({}).expand_symint(weight.sym_sizes());
  };
  check_experts({in.x, in.offsets, as_x(in.w1), in.b1, as_x(in.w2), in.b2, in.activation});
  const auto check_scale = [&](const char* name, const OptionalTensor& scale, const at::Tensor& b) {
    if (!scale) fail("routed_mlp: {} is missing", name);
    check_like("routed_mlp", name, *scale, {b.sym_size(0), b.sym_size(1)}, in.x);
  };
  check_scale("w1_scale", in.w1_scale, in.b1);
  check_scale("w2_scale", in.w2_scale, in.b2);
}

namespace {

at::Tensor routed_mlp_shapes(const RoutedMlpArguments& in) {
  return at::empty_symint(in.x.sym_sizes(), in.x.options());
}

/// Runs the three operators, for gradients and on devices without a fused kernel. The CPU adds the
/// last bias within its products, other devices within combine.
at::Tensor in_three_steps(const RoutedMlpArguments& in) {
  if (in.is_packed) fail("routed_mlp: packed weights are for the CPU, without gradients");
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
    if (torch::autograd::compute_requires_grad(in.x, in.gate, in.w1, in.b1, in.w2, in.b2))
      return in_three_steps(in);
    const at::AutoDispatchBelowADInplaceOrView guard;
    return RoutedMlpOperator::call(arguments...);
  }
};

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  define<RoutedMlpOperator, routed_mlp_shapes, RoutedMlpOperator::apply<RoutedMlp>>(
      m,
      "routed_mlp(Tensor x, Tensor offsets, Tensor token, Tensor gate, Tensor token_offsets, "
      "Tensor token_row, Tensor w1, Tensor b1, Tensor w2, Tensor b2, int activation=1, "
      "bool packed=False, Tensor? w1_scale=None, Tensor? w2_scale=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  implement<RoutedMlpOperator, in_three_steps>(m);
}

}  // namespace
}  // namespace ops

at::Tensor routed_mlp(const at::Tensor& x_Td, const Routing& routing, const ExpertWeights& weights,
                      Activation activation) {
  const auto optional = [](const at::Tensor& scale) {
    return scale.defined() ? ops::OptionalTensor(scale) : std::nullopt;
  };
  return ops::RoutedMlpOperator::call(
      x_Td, routing.offsets, routing.token, routing.gate, routing.token_offsets, routing.token_row,
      weights.w1, weights.b1, weights.w2, weights.b2, static_cast<int64_t>(activation),
      weights.is_packed, optional(weights.w1_scale), optional(weights.w2_scale));
}

ExpertWeights pack_experts(const ExpertWeights& weights) {
  const at::NoGradGuard no_grad;
  return weights.is_packed ? weights : ops::pack_experts_cpu(weights);
}

ExpertWeights round_experts_to_int8(const ExpertWeights& weights) {
  const at::NoGradGuard no_grad;
  const auto scales = [](const at::Tensor& w) { return w.detach().abs().amax(1) / 127; };
  const auto rounded = [](const at::Tensor& w, const at::Tensor& scale) {
    const at::Tensor divisor = scale.clamp_min(std::numeric_limits<float>::min()).unsqueeze(1);
    return (w.detach() / divisor).round_().clamp_(-127, 127).to(at::kChar);
  };
  const at::Tensor s1 = scales(weights.w1), s2 = scales(weights.w2);
  return {rounded(weights.w1, s1),
          weights.b1.detach(),
          rounded(weights.w2, s2),
          weights.b2.detach(),
          false,
          s1,
          s2};
}

ExpertWeights quantise_experts(const ExpertWeights& weights) {
  constexpr int64_t kMaxWidth = 1 << 16;  // 255 x 127 x 65536 fits 32 bits.
  const int64_t width = weights.w1.size(1), hidden = weights.w1.size(2);
  if (!weights.w1.is_cpu() || weights.w1.scalar_type() != at::kFloat || weights.is_packed) {
    fail_usage(
        "precision int8 needs float32 weights on the CPU, which a GPU and a program (.pt2) do not "
        "have; leave it out");
  }
  if (!has_int8_matmul()) {
    fail_usage(
        "precision int8 needs AVX512-VNNI or AMX, which this CPU or MOESAIC_CPU does not have; "
        "leave it out");
  }
  if (width % 4 != 0 || hidden % 4 != 0 || width > kMaxWidth) {
    fail_usage(
        "precision int8 needs widths that are multiples of 4 up to {}, found {} and {}; leave it "
        "out",
        kMaxWidth, width, hidden);
  }
  return ops::pack_experts_cpu(round_experts_to_int8(weights));
}

}  // namespace moesaic
