// SPDX-License-Identifier: Apache-2.0
// Adaptive routing: schema, checks and shape function. route.cpp computes it. Gates are 1, so that
// there is no gradient.
#include "moesaic/ops/route_adaptive.h"

#include <torch/library.h>
#include <torch/torch.h>

#include <cmath>

#include "check.h"
#include "moesaic/base/error.h"
#include "row_bound.h"

namespace moesaic {
namespace ops {
namespace {

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def(
      "route_adaptive(Tensor logits, float threshold=0., int[] kept=[]) -> (Tensor offsets, "
      "Tensor token, Tensor gate, Tensor token_offsets, Tensor token_row)");
}

}  // namespace

void check_route_adaptive(const at::Tensor& logits, const AdaptiveOptions& options) {
  constexpr const char* kOp = "route_adaptive";
  check_logits(kOp, logits);
  check_row_count(kOp, logits.sym_size(0), check_kept(kOp, options.kept, logits.sym_size(1)));
  if (std::isnan(options.threshold)) fail("{}: threshold must be a number, found nan", kOp);
}

namespace {

RowTensors route_adaptive_meta(const at::Tensor& logits, const AdaptiveOptions& options) {
  check_route_adaptive(logits, options);
  const c10::SymInt computed = computed_experts(options, logits.sym_size(1));
  return unfilled_rows(logits, computed, logits.sym_size(0) * computed);
}

RowTensors route_adaptive_autograd(const at::Tensor& logits, const AdaptiveOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return AdaptiveOperator::call(logits, options);
}

TORCH_LIBRARY_IMPL(moesaic, Meta, m) {
  m.impl("route_adaptive", AdaptiveOperator::unpacked<route_adaptive_meta>);
}
TORCH_LIBRARY_IMPL(moesaic, Autograd, m) {
  m.impl("route_adaptive", AdaptiveOperator::unpacked<route_adaptive_autograd>);
}

}  // namespace
}  // namespace ops

Routing route_adaptive(const at::Tensor& logits_TE, const AdaptiveOptions& options) {
  auto [offsets, token, gate, token_offsets, token_row] =
      ops::AdaptiveOperator::call(logits_TE, options);
  const at::Tensor choice = at::empty({token_offsets.size(0) - 1, 0}, token.options());
  return {offsets, token, gate, token_offsets, token_row, choice};
}

}  // namespace moesaic
