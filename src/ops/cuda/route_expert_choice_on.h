// SPDX-License-Identifier: Apache-2.0
// Expert choice on a device: scores by expert, a border for every expert of every group, then rows
// for the tokens within the borders. Invalid scores cannot be reported without a synchronisation:
// where one of a group is NaN, or none is finite, the expert's gates of that group are NaN.
// `Device` starts kernels and owns memory: the current stream of a GPU (operators.cpp), or the
// serial device of a test.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "../kernels/route_expert_choice.h"
#include "../route.h"
#include "../route_plan.h"
#include "kept_scope.h"
#include "moesaic/ops/route.h"

namespace moesaic::ops::on_device {

using at::Tensor;
/// Returns how many blocks share a queue of `size` entries: one where there are queues enough to
/// fill a GPU, else one for some thousand entries, so many that their sums are few.
inline int64_t queue_parts(int64_t queues, int64_t size) {
  constexpr int64_t kEntries = 2048, kMaxParts = 64, kManyQueues = 1024;
  if (queues >= kManyQueues) return 1;
  return std::clamp<int64_t>(size / kEntries, 1, kMaxParts);
}

/// Returns the number of threads of a block that searches a queue of `size` entries with others.
inline int queue_threads(int64_t size, int64_t parts) {
  return parts > 1 ? kernels::kDigits : std::max(scan_threads(size), kernels::kDigits);
}

/// Returns the borders of all queues, Border[queues]. The queues have at most `size` entries, their
/// positions as many digits as the first.
template <class Queues, class Device>
at::Tensor select_borders(const Queues& queues, int64_t size, const at::Tensor& like,
                          const Device& device) {
  using kernels::Border;
  const int64_t count = queues.count();
  const auto bytes = [&](int64_t number, size_t each) {
    return at::empty({number * static_cast<int64_t>(each)}, like.options().dtype(at::kByte));
  };
  const at::Tensor borders = bytes(count, sizeof(Border));
  const int64_t parts = queue_parts(count, size);
  const int threads = queue_threads(size, parts);
  const auto start = [&](const auto& kernel) {
    device.template start<kernels::kSelectThreads>(kernel, count * parts, threads,
                                                   kernels::select_bytes(threads));
  };
  if (parts == 1) {
    start(kernels::SelectBorders<Queues>{queues, out<Border>(borders)});
    return borders;
  }
  const int digits = queues.digits(size).count();
  const at::Tensor histograms =
      at::zeros({digits * count * kernels::kDigits}, like.options().dtype(at::kInt));
  const at::Tensor states = bytes((digits + 1) * count, sizeof(kernels::SelectState));
  for (int digit = 0; digit <= digits; ++digit) {
    start(kernels::SelectDigit<Queues>{queues, digit, parts, out<int32_t>(histograms),
                                       out<kernels::SelectState>(states), out<Border>(borders)});
  }
  return borders;
}

/// Values of a call that depend on sizes and options only.
struct ExpertChoicePlan : ExpertChoiceSizes {
  Gate kind;
  bool includes_pruned;  ///< Whether the softmax over experts includes pruned ones.

  ExpertChoicePlan(const Tensor& logits, const RouteOptions& options)
      : ExpertChoiceSizes(logits.size(0), logits.size(1), options),
        kind(options.gate),
        includes_pruned(options.pruned == PrunedSelection::zero) {}

  int64_t parts() const { return queue_parts(cut.count() * computed, cut.group_size); }
  int threads() const { return queue_threads(cut.group_size, parts()); }
  template <class Scalar>
  kernels::ExpertQueues<Scalar> queues(const Tensor& scores) const {
    return {cut, rows, static_cast<int32_t>(computed), parts(), in<Scalar>(scores)};
  }
  bool is_over_tokens() const {
    return kind == Gate::softmax_selected || kind == Gate::softmax_tokens;
  }
};

/// Starts a kernel on all parts of all queues.
template <class Kernel, class Device>
void on_parts(const Kernel& kernel, const ExpertChoicePlan& plan, const Device& device) {
  device.template start<kernels::kSelectThreads>(
      kernel, plan.cut.count() * plan.computed * plan.parts(), plan.threads(),
      kernel.shared_bytes(plan.threads()));
}

/// Turns the rule into a routing.
template <class Scalar, class Device>
void route_by_rule(const at::Tensor& logits, int64_t slots,
                   const kernels::ExpertChoiceRule<Scalar>& rule,
                   const RoutingArrays<Scalar>& arrays, const Device& device) {
  const Segments segments(TokenGroups(logits.size(0), 0), segment_length(slots));
  const int64_t count = segments.count();
  const auto experts = static_cast<int32_t>(slots);
  const int threads = static_cast<int>(segments.length);
  const auto index = logits.options().dtype(at::kInt);
  const at::Tensor before = at::empty({slots * count}, index);
  const at::Tensor totals = at::empty({slots}, index);
  const kernels::CountRule<Scalar> counting{segments, count, experts, rule, out<int32_t>(before)};
  device.template start<256>(counting, count, threads, counting.shared_bytes(threads));
  const kernels::ScanRows scan{count, out<int32_t>(before), out<int32_t>(totals)};
  const int scanning = scan_threads(count);
  device.template start<kernels::kScanThreads>(scan, slots, scanning, scan.shared_bytes(scanning));
  const kernels::PlaceRule<Scalar> place{
      segments, {in<int32_t>(before), in<int32_t>(totals), count, experts}, rule, arrays};
  device.template start<256>(place, std::max<int64_t>(count, 1), threads,
                             place.shared_bytes(threads));
}

template <class Scalar, class Device>
void choose_tokens(const Tensor& logits, const ExpertChoicePlan& plan,
                   const kernels::KeptView& kept, const RowTensors& to, const Device& device) {
  const Tensor scores = at::empty({plan.computed, plan.tokens}, logits.options());
  const kernels::WriteScores<Scalar> write{in<Scalar>(logits),
                                           plan.tokens,
                                           plan.experts,
                                           static_cast<int32_t>(plan.computed),
                                           kept,
                                           plan.kind == Gate::softmax_all,
                                           plan.includes_pruned,
                                           out<Scalar>(scores)};
  constexpr int kThreads = 256;
  device.template start<kThreads>(write, kernels::divide_up<int64_t>(plan.tokens, kThreads),
                                  kThreads, 0);
  const auto queues = plan.queues<Scalar>(scores);
  const Tensor memory = select_borders(queues, plan.cut.group_size, logits, device);
  const auto* const borders = in<kernels::Border>(memory);
  const Tensor tops = at::empty({queues.blocks()}, logits.options()), sums = at::empty_like(tops);
  kernels::PartialSoftmax<Scalar> softmax{in<Scalar>(tops), nullptr, queues.parts};
  on_parts(kernels::FindTops<Scalar>{queues, out<Scalar>(tops)}, plan, device);
  if (plan.is_over_tokens()) {
    const auto* const terms = plan.kind == Gate::softmax_tokens ? nullptr : borders;
    on_parts(kernels::SumTerms<Scalar>{queues, softmax, terms, out<Scalar>(sums)}, plan, device);
    softmax.sums = in<Scalar>(sums);
  }
  const kernels::ExpertChoiceRule<Scalar> rule{in<Scalar>(scores), borders,      softmax,
                                               plan.cut,           queues.slots, plan.kind};
  route_by_rule<Scalar>(logits, plan.computed, rule, arrays_of<Scalar>(to), device);
}

template <class Device>
RowTensors route_expert_choice_on(const Device& device, const Tensor& logits_in,
                                  const RouteOptions& options) {
  if (logits_in.size(1) > kernels::kMaxExperts) return expert_choice(logits_in, options);
  const Tensor logits = logits_in.contiguous();
  const KeptScope computed(logits, options.kept, device);
  const ExpertChoicePlan plan(logits, options);
  const RowTensors to = unfilled_rows(logits, plan.computed, plan.bound());
  with_logit_type(logits, [&](auto tag) {
    using Scalar = typename decltype(tag)::type;
    choose_tokens<Scalar>(logits, plan, computed.view(), to, device);
  });
  return to;
}

}  // namespace moesaic::ops::on_device
