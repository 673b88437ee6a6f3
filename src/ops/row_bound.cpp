// SPDX-License-Identifier: Apache-2.0
#include "row_bound.h"

#include <ATen/ops/empty.h>
#include <c10/core/SymFloat.h>

namespace moesaic::ops {
namespace {

using c10::SymFloat;
using c10::SymInt;

SymInt floor_of(const SymFloat& value) {
  return SymInt(value.toSymNodeImpl()->floor());
}
SymInt ceil_of(const SymFloat& value) {
  return SymInt(value.toSymNodeImpl()->ceil());
}

/// Rounds halves to the even number; only for them do the two neighbours differ. Kernels refuse 0,
/// and a compiler that knows so asks nothing of the sizes.
SymInt rounded_half_even(const SymFloat& value) {
  const SymInt up = floor_of(value + 0.5), down = ceil_of(value - 0.5);
  return (up - (up - down) * (up % 2)).max(1);
}

/// Computes expert_capacity() in its order of operations, so that floating-point numbers agree.
SymInt capacity_of_group(const SymInt& tokens, int64_t k, const CapacityRule& rule,
                         const SymInt& experts) {
  const auto count = tokens.maybe_as_int(), among = experts.maybe_as_int();
  if (count && among) return expert_capacity(*count, k, rule, *among);
  const SymFloat exact =
      static_cast<SymFloat>(tokens * k) * rule.factor / static_cast<SymFloat>(experts);
  const SymInt rows =
      rule.rounding == CapacityRounding::ceil ? ceil_of(exact) : rounded_half_even(exact);
  return (rows + rule.multiple_of - 1) / rule.multiple_of * rule.multiple_of;
}

/// Sums rows(tokens) over groups, of which the last may be smaller.
template <class Rows>
SymInt over_groups(const SymInt& tokens, const SymInt& group_size, const Rows& rows) {
  if (tokens.maybe_as_int() == 0) return 0;
  if (group_size.maybe_as_int() == 0) return rows(tokens);
  return (tokens - 1) / group_size * rows(group_size) + rows((tokens - 1) % group_size + 1);
}

}  // namespace

RowTensors unfilled_rows(const at::Tensor& logits_TE, const SymInt& computed, const SymInt& bound) {
  const at::TensorOptions index = logits_TE.options().dtype(at::kInt);
  return {at::empty_symint({computed + 1}, index), at::empty_symint({bound}, index),
          at::empty_symint({bound}, logits_TE.options()),
          at::empty_symint({logits_TE.sym_size(0) + 1}, index), at::empty_symint({bound}, index)};
}

SymInt token_choice_row_bound(const SymInt& tokens, const SymInt& experts,
                              const TokenChoiceCall& call) {
  const SymInt computed = computed_experts(call.known, experts);
  const SymInt selected = tokens * computed.min(call.known.k);
  const bool fixed = call.rows.maybe_as_int() != 0;
  if (!fixed && call.known.capacity_factor == 0.0) return selected;
  const SymInt seen = seen_experts(call.known, experts);
  const SymInt rows = over_groups(tokens, call.group_size, [&](const SymInt& group) {
    return group.min(fixed ? call.rows
                           : capacity_of_group(group, call.known.k, capacity_of(call.known), seen));
  });
  return selected.min(computed * rows);
}

SymInt expert_choice_rows(const SymInt& tokens, const SymInt& experts,
                          const ExpertChoiceCall& call) {
  const SymInt seen = seen_experts(call.known, experts);
  return over_groups(tokens, call.group_size, [&](const SymInt& group) {
    if (call.rows.maybe_as_int() != 0) return call.rows;
    return group.min(capacity_of_group(group, 1, capacity_of(call.known), seen));
  });
}

}  // namespace moesaic::ops
