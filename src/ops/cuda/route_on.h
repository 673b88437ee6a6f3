// SPDX-License-Identifier: Apache-2.0
// Routings on a device. Token choice is three kernels that choose, scan and place; with batch
// priority the first of them and the composite (../route.h) for the rows, and with many choices or
// very many experts the composite alone. Expert choice is the composite with a kernel in place of
// its sorts. Nothing synchronises with the host, so invalid logits (NaN, infinite, or all
// -infinity) cannot be reported: the token is still routed, NaN counting as -infinity, with gates
// of NaN, which show in all results computed from them. `Device` starts kernels and owns memory:
// the current stream of a GPU (operators.cpp), or the serial device of a test.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "../kernels/route_token_choice.h"
#include "../kernels/select.h"
#include "../route.h"
#include "../route_arguments.h"
#include "../route_plan.h"
#include "tensor_data.h"

namespace moesaic::ops::on_device {

using at::Tensor;

inline kernels::KeptExperts kept_experts(at::IntArrayRef kept) {
  kernels::KeptExperts experts{kept.empty(), {}};
  for (const int64_t e : kept) experts.bits[e / 32] |= uint32_t{1} << (e % 32);
  return experts;
}

/// Returns the number of threads of a block that scans `count` numbers.
inline int scan_threads(int64_t count) {
  int threads = kernels::kWarp;
  while (threads < count && threads < kernels::kScanThreads) threads *= 2;
  return threads;
}

/// Values of a call that depend on sizes and options only.
struct TokenChoicePlan : TokenChoiceSizes {
  kernels::QueueIndex queues;

  /// The bits of a segment's tokens for all computed experts fit into shared memory.
  TokenChoicePlan(const Tensor& logits, const TokenChoiceOptions& options)
      : TokenChoiceSizes(logits.size(0), logits.size(1), options),
        queues(Segments(cut, computed <= 1024 ? 256 : 64), k, computed) {}

  int threads() const { return static_cast<int>(queues.segments.length); }
};

inline bool reroutes(const TokenChoiceOptions& options) {
  return options.pruned == PrunedSelection::reroute;
}

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
  const auto& [offsets, token, gate, token_offsets, token_row] = to;
  const kernels::RoutingArrays<Scalar> arrays{out<int32_t>(offsets),
                                              out<int32_t>(token),
                                              out<int32_t>(token_offsets),
                                              out<int32_t>(token_row),
                                              out<Scalar>(gate),
                                              plan.bound,
                                              plan.tokens};
  const Tensor before = at::empty({plan.computed * plan.queues.count}, counts.options());
  const Tensor totals = at::empty({plan.computed}, counts.options());
  const kernels::ScanQueues scan{plan.queues, plan.rows, out<int32_t>(counts), out<int32_t>(before),
                                 out<int32_t>(totals)};
  const int scanning = scan_threads(plan.queues.per_slot());
  device.template start<kernels::kScanThreads>(scan, plan.computed, scanning,
                                               scan.shared_bytes(scanning));
  const kernels::PlaceChoices<Scalar> kernel{
      plan.queues,         plan.rows,           plan.limited,
      in<int32_t>(counts), in<int32_t>(before), in<int32_t>(totals),
      in<Scalar>(gate_Tk), choice_row,          arrays};
  device.template start<256>(kernel, std::max<int64_t>(plan.queues.count, 1), plan.threads(),
                             kernel.shared_bytes(plan.threads()));
}

template <class Device>
ChoiceTensors route_token_choice_on(const Device& device, const Tensor& logits_in,
                                    const TokenChoiceOptions& options) {
  if (options.k > kernels::kMostChoices || logits_in.size(1) > kernels::kMaxExperts) {
    return token_choice(logits_in, options);
  }
  const Tensor logits = logits_in.contiguous();
  const TokenChoicePlan plan(logits, options);
  const auto index = logits.options().dtype(at::kInt);
  const Tensor gate_Tk = at::empty({plan.tokens, plan.k}, logits.options());
  const Tensor counts = at::empty({plan.computed * plan.queues.per_slot()}, index);
  const Tensor choice = at::empty({plan.tokens, plan.k}, index);
  const Tensor choice_row = at::empty({plan.tokens, plan.k}, index);
  with_logit_type(logits, [&](auto tag) {
    using Scalar = typename decltype(tag)::type;
    choose<Scalar>(
        {in<Scalar>(logits), plan.experts, static_cast<int32_t>(plan.k), options.gate,
         kept_experts(options.kept), reroutes(options), plan.queues, out<int32_t>(choice),
         out<int32_t>(choice_row), out<int32_t>(counts), out<Scalar>(gate_Tk)},
        plan, device);
  });
  if (plan.limited && options.batch_priority) {
    return rows_of_choices(choice, gate_Tk, plan.experts, options);
  }
  const RowTensors rows = unfilled_rows(logits, plan.computed, plan.bound);
  with_logit_type(logits, [&](auto tag) {
    using Scalar = typename decltype(tag)::type;
    place<Scalar>(plan, gate_Tk, counts, out<int32_t>(choice_row), rows, device);
  });
  return std::tuple_cat(rows, std::tuple(choice, choice_row));
}

template <class Device>
Tensor route_token_choice_backward_on(const Device& device, const Tensor& grad_in,
                                      const Tensor& logits_in, const Tensor& choice_in,
                                      const Tensor& row_in, const TokenChoiceOptions& options) {
  if (logits_in.size(1) > kernels::kMaxExperts) {
    return token_choice_backward(grad_in, logits_in, choice_in, row_in, options);
  }
  const Tensor grad_gate = grad_in.contiguous();
  const Tensor logits = logits_in.contiguous();
  const Tensor choice = choice_in.contiguous();
  const Tensor choice_row = row_in.contiguous();
  const Tensor grad_logits = at::empty_like(logits);
  const int64_t tokens = logits.size(0);
  with_logit_type(logits, [&](auto tag) {
    using Scalar = typename decltype(tag)::type;
    constexpr int kThreads = 128;
    const kernels::GateGradient<Scalar> kernel{in<Scalar>(grad_gate),
                                               in<Scalar>(logits),
                                               in<int32_t>(choice),
                                               in<int32_t>(choice_row),
                                               tokens,
                                               logits.size(1),
                                               static_cast<int32_t>(choice.size(1)),
                                               options.gate,
                                               kept_experts(options.kept),
                                               reroutes(options),
                                               out<Scalar>(grad_logits)};
    device.template start<256>(kernel, kernels::divide_up<int64_t>(tokens, kThreads), kThreads, 0);
  });
  return grad_logits;
}

/// Marks the `wanted` largest numbers of each row of x [..., S], earlier ones first among equal
/// ones.
template <class Device>
Tensor take_largest_on(const Device& device, const Tensor& x_in, int64_t wanted) {
  constexpr int64_t kNumbersOfPart = 2048, kMaxParts = 64;
  const Tensor x = x_in.contiguous();
  const int64_t size = x.size(-1), rows = x.numel() / size;
  const int64_t parts = std::clamp<int64_t>(size / kNumbersOfPart, 1, kMaxParts);
  std::vector<int64_t> of_rows = x.sizes().vec();
  of_rows.back() = 1;
  const Tensor larger = at::empty_like(x, at::kBool), equal = at::empty_like(larger);
  const Tensor wanted_equal = at::empty(of_rows, x.options().dtype(at::kInt));
  with_logit_type(x, [&](auto tag) {
    using Kernel = kernels::SelectLargest<typename decltype(tag)::type>;
    using State = typename Kernel::State;
    const Tensor histograms =
        at::zeros({Kernel::kSteps, rows, kernels::kDigits}, wanted_equal.options());
    const Tensor states =
        at::empty({(Kernel::kSteps + 1) * rows, static_cast<int64_t>(sizeof(State))},
                  x.options().dtype(at::kByte));
    for (int step = 0; step <= Kernel::kSteps; ++step) {
      const Kernel kernel{in<typename decltype(tag)::type>(x),
                          rows,
                          size,
                          static_cast<int32_t>(wanted),
                          parts,
                          step,
                          out<int32_t>(histograms),
                          out<State>(states),
                          out<bool>(larger),
                          out<bool>(equal),
                          out<int32_t>(wanted_equal)};
      device.template start<kernels::kDigits>(kernel, rows * parts, kernels::kDigits,
                                              kernel.shared_bytes(kernels::kDigits));
    }
  });
  return larger.logical_or(equal.logical_and(equal.cumsum(-1, at::kInt).le(wanted_equal)));
}

template <class Device>
RowTensors route_expert_choice_on(const Device& device, const Tensor& logits,
                                  const ExpertChoiceOptions& options) {
  return expert_choice_with(logits, options, [&](const Tensor& x, int64_t wanted) {
    return take_largest_on(device, x, wanted);
  });
}

}  // namespace moesaic::ops::on_device
