// SPDX-License-Identifier: Apache-2.0
// Adaptive routing: schema, checks and shape function. The kernels are cpu/route_adaptive.cpp and
// its siblings. Gates are 1, so that there is no gradient.
#include "moesaic/ops/route_adaptive.h"

#include <torch/library.h>
#include <torch/torch.h>

#include <cmath>

#include "check.h"
#include "moesaic/base/error.h"

namespace moesaic {
namespace ops {
namespace {

using AdaptiveTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using AdaptiveSignature = AdaptiveTensors(const at::Tensor&, double, at::IntArrayRef);

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def(
      "route_adaptive(Tensor logits, float threshold=0., int[] kept=[]) -> (Tensor offsets, "
      "Tensor token, Tensor gate, Tensor token_offsets, Tensor token_row)");
}

AdaptiveTensors call_adaptive(const at::Tensor& logits, double threshold, at::IntArrayRef kept) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moesaic::route_adaptive", "")
                             .typed<AdaptiveSignature>();
  return op.call(logits, threshold, kept);
}

}  // namespace

void check_route_adaptive(const at::Tensor& logits, double threshold, at::IntArrayRef kept) {
  constexpr const char* kOp = "route_adaptive";
  check_logits(kOp, logits);
  check_row_count(kOp, logits.size(0), check_kept(kOp, kept, logits.size(1)));
  if (std::isnan(threshold)) fail("{}: threshold must be a number, found nan", kOp);
}

namespace {

AdaptiveTensors adaptive_meta(const at::Tensor& logits, double threshold, at::IntArrayRef kept) {
  check_route_adaptive(logits, threshold, kept);
  const int64_t tokens = logits.size(0);
  const int64_t computed = kept.empty() ? logits.size(1) : static_cast<int64_t>(kept.size());
  const int64_t bound = tokens * computed;
  const auto index = logits.options().dtype(at::kInt);
  return {at::empty({computed + 1}, index), at::empty({bound}, index),
          at::empty({bound}, logits.options()), at::empty({tokens + 1}, index),
          at::empty({bound}, index)};
}

AdaptiveTensors adaptive_autograd(const at::Tensor& logits, double threshold,
                                  at::IntArrayRef kept) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call_adaptive(logits, threshold, kept);
}

TORCH_LIBRARY_IMPL(moesaic, Meta, m) {
  m.impl("route_adaptive", adaptive_meta);
}
TORCH_LIBRARY_IMPL(moesaic, Autograd, m) {
  m.impl("route_adaptive", adaptive_autograd);
}

}  // namespace
}  // namespace ops

Routing route_adaptive(const at::Tensor& logits_TE, double threshold,
                       const std::vector<int64_t>& kept) {
  auto [offsets, token, gate, token_offsets, token_row] =
      ops::call_adaptive(logits_TE, threshold, kept);
  const at::Tensor choice = at::empty({token_offsets.size(0) - 1, 0}, token.options());
  return {offsets, token, gate, token_offsets, token_row, choice};
}

}  // namespace moesaic
