// SPDX-License-Identifier: Apache-2.0
// Token choice on a device by three kernels that choose, scan and place; with batch priority by the
// first and the composite (../route.h) for the rows, and with many choices by the composite alone.
// Nothing synchronises with the host, so invalid logits (NaN, infinite, or all -infinity) cannot be
// reported: the token is still routed, NaN counting as -infinity, with gates of NaN, which show in
// all results computed from them. `Device` starts kernels and owns memory: the current stream of a
// GPU (operators.cpp), or the serial device of a test.
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>

#include "../kernels/route_token_choice.h"
#include "../route.h"
#include "../route_plan.h"
#include "kept_scope.h"

namespace moesaic::ops::on_device {

using at::Tensor;

/// Values of a call that depend on sizes and options only.
struct TokenChoicePlan : TokenChoiceSizes {
  kernels::QueueIndex queues;

  TokenChoicePlan(const Tensor& logits, const RouteOptions& options)
      : TokenChoiceSizes(logits.size(0), logits.size(1), options),
        queues(Segments(cut, segment_length(computed)), k, computed) {}

  int threads() const { return static_cast<int>(queues.segments.length); }
};

template <class Scalar, class Device>
void choose(const kernels::ChooseExperts<Scalar>& in, const TokenChoicePlan& plan,
            const Device& device) {
  const int threads = plan.threads();
  const auto go = [&](const auto& kernel) {
    device.template start<256>(kernel, plan.queues.count, threads, in.shared_bytes(threads));
  };
  if (plan.k == 1) return go(kernels::ChooseBestExperts<Scalar, 1>{in});
  if (plan.k == 2) return go(kernels::ChooseBestExperts<Scalar, 2>{in});
  if (plan.k <= 4) return go(kernels::ChooseBestExperts<Scalar, 4>{in});
  go(kernels::ChooseBestExperts<Scalar, kernels::kMostChoices>{in});
}

/// Lays out rows of the chosen experts; choice_row holds their slots on entry, counts see
/// QueueIndex.
template <class Scalar, class Device>
void place(const TokenChoicePlan& plan, const Tensor& gate_Tk, const Tensor& counts,
           int32_t* choice_row, const RowTensors& to, const Device& device) {
  const Tensor before = at::empty({plan.computed * plan.queues.count}, counts.options());
  const Tensor totals = at::empty({plan.computed}, counts.options());
  const kernels::ScanQueues scan{plan.queues, plan.rows, out<int32_t>(counts), out<int32_t>(before),
                                 out<int32_t>(totals)};
  const int scanning = scan_threads(plan.queues.per_slot());
  device.template start<kernels::kScanThreads>(scan, plan.computed, scanning,
                                               scan.shared_bytes(scanning));
  const kernels::SegmentRows rows{in<int32_t>(before), in<int32_t>(totals), plan.queues.count,
                                  static_cast<int32_t>(plan.computed)};
  const kernels::PlaceChoices<Scalar> kernel{
      plan.queues, plan.rows,           plan.is_limited, in<int32_t>(counts),
      rows,        in<Scalar>(gate_Tk), choice_row,      arrays_of<Scalar>(to)};
  device.template start<256>(kernel, std::max<int64_t>(plan.queues.count, 1), plan.threads(),
                             kernel.shared_bytes(plan.threads()));
}

template <class Device>
ChoiceTensors route_token_choice_on(const Device& device, const Tensor& logits_in,
                                    const RouteOptions& options) {
  if (options.k > kernels::kMostChoices || logits_in.size(1) > kernels::kMaxExperts) {
    return token_choice(logits_in, options);
  }
  const Tensor logits = logits_in.contiguous();
  const KeptScope computed(logits, options.kept, device);
  const TokenChoicePlan plan(logits, options);
  const auto index = logits.options().dtype(at::kInt);
  const Tensor gate_Tk = at::empty({plan.tokens, plan.k}, logits.options());
  const Tensor counts = at::empty({plan.computed * plan.queues.per_slot()}, index);
  const Tensor choice = at::empty({plan.tokens, plan.k}, index);
  const Tensor choice_row = at::empty({plan.tokens, plan.k}, index);
  with_logit_type(logits, [&](auto tag) {
    using Scalar = typename decltype(tag)::type;
    choose<Scalar>({in<Scalar>(logits), plan.experts, static_cast<int32_t>(plan.k), options.gate,
                    computed.view(), options.pruned == PrunedSelection::reroute, plan.queues,
                    out<int32_t>(choice), out<int32_t>(choice_row), out<int32_t>(counts),
                    out<Scalar>(gate_Tk)},
                   plan, device);
  });
  if (plan.is_limited && options.capacity.batch_priority) {
    return rows_of_choices(choice, gate_Tk, plan.experts, options);
  }
  const RowTensors rows = unfilled_rows(logits, plan.computed, plan.bound);
  with_logit_type(logits, [&](auto tag) {
    using Scalar = typename decltype(tag)::type;
    place<Scalar>(plan, gate_Tk, counts, out<int32_t>(choice_row), rows, device);
  });
  return std::tuple_cat(rows, std::tuple(choice, choice_row));
}

}  // namespace moesaic::ops::on_device
