// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/route.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "../route_plan.h"
#include "moesaic/base/error.h"
#include "route_token_choice_select.h"

namespace moesaic::ops {
namespace {

/// Number of tokens of a segment, also the minimum worth a task.
constexpr int64_t kTokensPerSegment = 256;
constexpr int64_t kTokensPerTask = 1024;

/// Returns the number of segments for each task of at::parallel_for.
int64_t segment_grain(const Segments& segments) {
  const int64_t length = std::min(segments.length, segments.cut.group_size);
  return std::max<int64_t>(1, kTokensPerTask / length);
}

/// Lays out the rows of all segments. counts [segments][slots]: rows of each segment at each
/// computed expert; on return, their first row. offsets [slots + 1]: first row of each expert.
/// pulled [segments + 1]: first entry of each segment in `token_row`.
void lay_out_rows(int64_t segments, int64_t slots, int32_t* counts, int32_t* offsets,
                  int32_t* pulled) {
  std::fill_n(pulled, segments + 1, 0);
  int32_t row = 0;
  for (int64_t slot = 0; slot < slots; ++slot) {
    offsets[slot] = row;
    for (int64_t segment = 0; segment < segments; ++segment) {
      const int32_t count = counts[segment * slots + slot];
      counts[segment * slots + slot] = row;
      pulled[segment + 1] += count;
      row += count;
    }
  }
  offsets[slots] = row;
  for (int64_t segment = 0; segment < segments; ++segment) pulled[segment + 1] += pulled[segment];
}

constexpr int32_t kDropped = -1;

/// Values of a call that depend on sizes and options only.
struct TokenChoicePlan : TokenChoiceSizes {
  std::vector<int32_t> columns;  ///< Ids of the experts that selection sees.
  std::vector<int32_t> slot_of;  ///< Slot of each expert [E] among the computed ones, or -1.
  Segments segments;

  TokenChoicePlan(const at::Tensor& logits, const RouteOptions& options)
      : TokenChoiceSizes(logits.size(0), logits.size(1), options),
        columns(seen_columns(experts, options.kept, options.pruned)),
        slot_of(experts, kDropped),
        segments(cut, kTokensPerSegment) {
    for (int64_t slot = 0; slot < computed; ++slot) {
      slot_of[options.kept.empty() ? slot : options.kept[slot]] = static_cast<int32_t>(slot);
    }
  }

  static std::vector<int32_t> seen_columns(int64_t experts, at::IntArrayRef kept,
                                           PrunedSelection pruned) {
    if (pruned == PrunedSelection::reroute && !kept.empty()) return {kept.begin(), kept.end()};
    std::vector<int32_t> all(experts);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
};

template <class Scalar>
void select_all(const TokenChoicePlan& plan, const RouterLogits<Scalar>& router, int32_t* choice_Tk,
                Scalar* gate_Tk) {
  std::vector<int64_t> bad(plan.segments.count(), -1);
  at::parallel_for(0, std::ssize(bad), segment_grain(plan.segments), [&](int64_t from, int64_t to) {
    for (int64_t s = from; s < to; ++s) {
      bad[s] =
          select_experts(router, plan.segments.begin(s), plan.segments.end(s), choice_Tk, gate_Tk);
    }
  });
  for (const int64_t token : bad) {
    if (token >= 0) {
      throw DivergedError(fmt::format(
          "route_token_choice: the logits of token {} are NaN, infinite, or all -infinity", token));
    }
  }
}

/// Fills the queues of every group: all first choices before the second ones, each rank in token
/// order or, `by_priority`, by falling first gates, equal ones in token order. Marks the accepted
/// choices with 0, the others with kDropped.
template <class Scalar>
void fill_queues(const TokenChoicePlan& plan, const int32_t* choice_Tk, const Scalar* gate_Tk,
                 bool by_priority, int32_t* mark_Tk) {
  // Where no choice is dropped, groups are only portions of the work.
  const TokenGroups cut =
      plan.is_limited ? plan.segments.cut : TokenGroups(plan.tokens, kTokensPerSegment);
  const int64_t k = plan.k, grain = std::max<int64_t>(1, kTokensPerTask / cut.group_size);
  at::parallel_for(0, cut.count(), grain, [&](int64_t from, int64_t to) {
    for (int64_t group = from; group < to; ++group) {
      std::vector<int64_t> order(cut.size(group)), queued(plan.experts, 0);
      std::iota(order.begin(), order.end(), cut.begin(group));
      if (by_priority) {
        std::ranges::stable_sort(order, std::ranges::greater(),
                                 [&](int64_t t) { return gate_Tk[t * k]; });
      }
      for (int64_t rank = 0; rank < k; ++rank) {
        for (const int64_t t : order) {
          const int32_t expert = choice_Tk[t * k + rank];
          const bool fits = queued[expert]++ < plan.rows.of(group) && plan.slot_of[expert] >= 0;
          mark_Tk[t * k + rank] = fits ? 0 : kDropped;
        }
      }
    }
  });
}

/// Adds the accepted choices of one segment to its rows of each computed expert.
void count_segment(const TokenChoicePlan& plan, const int32_t* choice_Tk, int64_t segment,
                   const int32_t* mark_Tk, int32_t* rows) {
  const int64_t end = plan.segments.end(segment) * plan.k;
  for (int64_t i = plan.segments.begin(segment) * plan.k; i < end; ++i) {
    if (mark_Tk[i] != kDropped) ++rows[plan.slot_of[choice_Tk[i]]];
  }
}

/// Fills the rows of one segment. choice_row has the marks of fill_queues() on entry.
template <class Scalar>
void fill_segment(const TokenChoicePlan& plan, const int32_t* choice_Tk, const Scalar* gate_Tk,
                  int64_t segment, int32_t* cursor, int32_t pulled,
                  const RoutingArrays<Scalar>& out, int32_t* choice_row) {
  const int64_t k = plan.k, end = plan.segments.end(segment);
  for (int64_t t = plan.segments.begin(segment); t < end; ++t) {
    out.token_offsets[t] = pulled;
    for (int64_t i = t * k; i < (t + 1) * k; ++i) {
      if (choice_row[i] == kDropped) continue;
      const int32_t row = cursor[plan.slot_of[choice_Tk[i]]]++;
      out.token[row] = static_cast<int32_t>(t);
      out.gate[row] = gate_Tk[i];
      out.token_row[pulled++] = row;
      choice_row[i] = row;
    }
  }
}

template <class Scalar>
void route_tokens(const TokenChoicePlan& plan, const RouterLogits<Scalar>& router,
                  bool batch_priority, int32_t* choice, Scalar* gate_Tk, int32_t* choice_row,
                  const RoutingArrays<Scalar>& out) {
  select_all(plan, router, choice, gate_Tk);
  const int64_t count = plan.segments.count();
  std::vector<int32_t> rows(count * plan.computed, 0), pulled(count + 1);
  const auto for_segments = [&](const auto& visit) {
    at::parallel_for(0, count, segment_grain(plan.segments), [&](int64_t from, int64_t to) {
      for (int64_t s = from; s < to; ++s) visit(s, rows.data() + s * plan.computed);
    });
  };
  fill_queues(plan, choice, gate_Tk, plan.is_limited && batch_priority, choice_row);
  for_segments([&](int64_t s, int32_t* of_experts) {
    count_segment(plan, choice, s, choice_row, of_experts);
  });
  lay_out_rows(count, plan.computed, rows.data(), out.offsets, pulled.data());
  for_segments([&](int64_t s, int32_t* cursor) {
    fill_segment(plan, choice, gate_Tk, s, cursor, pulled[s], out, choice_row);
  });
  out.token_offsets[plan.tokens] = pulled[count];
  const int64_t filled = pulled[count], unused = out.bound - filled;
  std::fill_n(out.token + filled, unused, 0);
  std::fill_n(out.token_row + filled, unused, 0);
  std::fill_n(out.gate + filled, unused, Scalar(0));
}

ChoiceTensors route_token_choice_cpu(const at::Tensor& logits_in, const RouteOptions& options) {
  const at::Tensor logits = logits_in.contiguous();
  const TokenChoicePlan plan(logits, options);
  const auto index = logits.options().dtype(at::kInt);
  const RowTensors rows = unfilled_rows(logits, plan.computed, plan.bound);
  const at::Tensor choice = at::empty({plan.tokens, plan.k}, index);
  const at::Tensor choice_row = at::empty({plan.tokens, plan.k}, index);
  const at::Tensor gate_Tk = at::empty({plan.tokens, plan.k}, logits.options());
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "route_token_choice", [&] {
    const RouterLogits<scalar_t> router{logits.const_data_ptr<scalar_t>(), plan.experts,
                                        plan.columns, plan.k, options.gate};
    route_tokens(plan, router, options.capacity.batch_priority, choice.mutable_data_ptr<int32_t>(),
                 gate_Tk.mutable_data_ptr<scalar_t>(), choice_row.mutable_data_ptr<int32_t>(),
                 arrays_of<scalar_t>(rows));
  });
  return std::tuple_cat(rows, std::tuple(choice, choice_row));
}

at::Tensor route_token_choice_backward_cpu(const at::Tensor& grad_in, const at::Tensor& logits_in,
                                           const at::Tensor& choice_in, const at::Tensor& row_in,
                                           const RouteOptions& options) {
  const at::Tensor grad_gate = grad_in.contiguous(), logits = logits_in.contiguous();
  const at::Tensor choice = choice_in.contiguous(), choice_row = row_in.contiguous();
  const int64_t experts = logits.size(1);
  const std::vector<int32_t> columns =
      TokenChoicePlan::seen_columns(experts, options.kept, options.pruned);
  const at::Tensor grad_logits = at::empty(logits.sizes(), logits.options());
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "route_token_choice_backward", [&] {
    const RouterLogits<scalar_t> router{logits.const_data_ptr<scalar_t>(), experts, columns,
                                        choice.size(1), options.gate};
    at::parallel_for(0, logits.size(0), kTokensPerTask, [&](int64_t begin, int64_t end) {
      gate_gradients(router, begin, end, choice.const_data_ptr<int32_t>(),
                     choice_row.const_data_ptr<int32_t>(), grad_gate.const_data_ptr<scalar_t>(),
                     grad_logits.mutable_data_ptr<scalar_t>());
    });
  });
  return grad_logits;
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  implement<TokenChoiceOperator, route_token_choice_cpu>(m);
  implement<TokenChoiceBackward, route_token_choice_backward_cpu>(m);
}

}  // namespace
}  // namespace moesaic::ops
