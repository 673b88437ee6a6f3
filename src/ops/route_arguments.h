// SPDX-License-Identifier: Apache-2.0
// Options as the dispatcher's arguments, and back. Schemas take numbers for enumerators.
#pragma once

#include <c10/util/ArrayRef.h>

#include "moesaic/ops/route_expert_choice.h"
#include "moesaic/ops/route_token_choice.h"

namespace moesaic::ops {

inline PrunedSelection pruned_selection(bool reroute) {
  return reroute ? PrunedSelection::reroute : PrunedSelection::zero;
}

inline TokenChoiceOptions token_choice_options(int64_t k, int64_t gate, double capacity_factor,
                                               int64_t group_size, at::IntArrayRef kept,
                                               bool batch_priority, bool reroute,
                                               int64_t capacity_rounding,
                                               int64_t capacity_multiple_of, int64_t capacity) {
  return {k,
          static_cast<Gate>(gate),
          capacity_factor,
          group_size,
          kept.vec(),
          batch_priority,
          pruned_selection(reroute),
          static_cast<CapacityRounding>(capacity_rounding),
          capacity_multiple_of,
          capacity};
}

inline ExpertChoiceOptions expert_choice_options(int64_t rows, double capacity_factor,
                                                 int64_t group_size, int64_t gate,
                                                 at::IntArrayRef kept, bool reroute,
                                                 int64_t capacity_rounding,
                                                 int64_t capacity_multiple_of) {
  return {rows,
          capacity_factor,
          group_size,
          static_cast<ExpertGate>(gate),
          kept.vec(),
          pruned_selection(reroute),
          static_cast<CapacityRounding>(capacity_rounding),
          capacity_multiple_of};
}

inline CapacityRule capacity_of(const TokenChoiceOptions& options) {
  return {options.capacity_factor, options.capacity_rounding, options.capacity_multiple_of,
          options.capacity};
}
inline CapacityRule capacity_of(const ExpertChoiceOptions& options) {
  return {options.capacity_factor, options.capacity_rounding, options.capacity_multiple_of};
}

/// Experts that are computed, and those that selection, softmax and capacity see.
template <class Options>
int64_t computed_experts(const Options& options, int64_t experts) {
  return options.kept.empty() ? experts : static_cast<int64_t>(options.kept.size());
}
template <class Options>
int64_t seen_experts(const Options& options, int64_t experts) {
  return options.pruned == PrunedSelection::reroute ? computed_experts(options, experts) : experts;
}

}  // namespace moesaic::ops
