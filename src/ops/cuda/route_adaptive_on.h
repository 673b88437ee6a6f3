// SPDX-License-Identifier: Apache-2.0
// Adaptive routing on a device. A NaN cannot be reported without a synchronisation: it passes the
// threshold with a gate of NaN. `Device` starts kernels and owns memory: the current stream of a
// GPU (tensors.h), or the serial device of a test.
#pragma once

#include "../check.h"
#include "../kernels/route_adaptive.h"
#include "../route_arguments.h"
#include "moesaic/ops/route_adaptive.h"
#include "route_rule.h"
#include "tensor_data.h"

namespace moesaic::ops::on_device {

using at::Tensor;

template <class Device>
RowTensors route_adaptive_on(const Device& device, const Tensor& logits_in,
                             const AdaptiveOptions& options) {
  check_route_adaptive(logits_in, options);
  const Tensor logits = logits_in.contiguous();
  const KeptScope computed("route_adaptive", logits, options.kept, device);
  const int64_t slots = computed_experts(options, logits.size(1));
  const RuleTensors to(logits, slots, logits.size(0) * slots);
  with_logit_type(logits, [&](auto tag) {
    using Scalar = typename decltype(tag)::type;
    const kernels::ThresholdRule<Scalar> rule{in<Scalar>(logits), logits.size(1), computed.view(),
                                              options.threshold};
    route_by_rule<Scalar>(logits, slots, rule, to.arrays<Scalar>(), device);
  });
  return {to.offsets, to.token, to.gate, to.token_offsets, to.token_row};
}
}  // namespace moesaic::ops::on_device
