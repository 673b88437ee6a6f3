// SPDX-License-Identifier: Apache-2.0
// A NaN cannot be reported without waiting for the device: it passes the threshold with a gate of
// NaN.
#include "moesaic/ops/route_adaptive.h"

#include <torch/library.h>

#include <tuple>

#include "../check.h"
#include "route_rule.h"

namespace moesaic::ops {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> route_adaptive_cuda(const Tensor& logits_in,
                                                                       double threshold,
                                                                       at::IntArrayRef kept) {
  check_route_adaptive(logits_in, threshold, kept);
  const DeviceScope device(logits_in);
  const Tensor logits = logits_in.contiguous();
  const KeptScope computed("route_adaptive", logits, kept, device.stream());
  const int64_t slots = kept.empty() ? logits.size(1) : static_cast<int64_t>(kept.size());
  const RuleTensors to(logits, slots, logits.size(0) * slots);
  with_logit_type(logits, [&](auto tag) {
    using Scalar = typename decltype(tag)::type;
    const kernels::ThresholdRule<Scalar> rule{in<Scalar>(logits), logits.size(1), computed.view(),
                                              threshold};
    route_by_rule<Scalar>(logits, slots, rule, to.arrays<Scalar>(), device.stream());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {to.offsets, to.token, to.gate, to.token_offsets, to.token_row};
}

TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("route_adaptive", route_adaptive_cuda);
}

}  // namespace
}  // namespace moesaic::ops
