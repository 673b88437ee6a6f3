// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/route.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "../check.h"
#include "../route_plan.h"
#include "moesaic/base/error.h"

namespace moesaic::ops {
namespace {

constexpr int64_t kTokensPerTask = 512;
constexpr int32_t kDropped = -1;

template <class Scalar>
struct TokenChoices {
  const Scalar* logits_TE;
  int64_t experts, k;
  bool softmax_all;
  int32_t* choice_Tk;
  Scalar* gate_Tk;

  /// The k largest logits of a token, best first, ties to the lower expert; false where a logit is
  /// NaN or the largest is infinite, so that no softmax exists.
  bool select(int64_t token) const {
    const Scalar* logits = logits_TE + token * experts;
    int32_t* choice = choice_Tk + token * k;
    for (int64_t rank = 0; rank < k; ++rank) {
      Scalar best = -std::numeric_limits<Scalar>::infinity();
      int64_t expert = -1;
      for (int64_t e = 0; e < experts; ++e) {
        if (std::isnan(logits[e])) return false;
        const bool taken = rank > 0 && is_taken(choice, rank, e);
        if (!taken && (expert < 0 || logits[e] > best)) {
          best = logits[e];
          expert = e;
        }
      }
      choice[rank] = static_cast<int32_t>(expert);
    }
    return std::isfinite(logits[choice[0]]);
  }

  void gates(int64_t token) const {
    const Scalar* logits = logits_TE + token * experts;
    const int32_t* choice = choice_Tk + token * k;
    Scalar* gate = gate_Tk + token * k;
    const Scalar top = logits[choice[0]];
    Scalar sum = 0;
    if (softmax_all) {
      for (int64_t e = 0; e < experts; ++e) sum += std::exp(logits[e] - top);
    } else {
      for (int64_t rank = 0; rank < k; ++rank) sum += std::exp(logits[choice[rank]] - top);
    }
    for (int64_t rank = 0; rank < k; ++rank)
      gate[rank] = std::exp(logits[choice[rank]] - top) / sum;
  }

 private:
  static bool is_taken(const int32_t* choice, int64_t count, int64_t expert) {
    for (int64_t i = 0; i < count; ++i) {
      if (choice[i] == expert) return true;
    }
    return false;
  }
};

/// Which choices get a row: those of kept experts that find room, all first choices before the
/// second ones.
void mark_accepted(const TokenGroups& groups, const std::vector<int32_t>& slot_of, int64_t k,
                   double capacity_factor, const int32_t* choice, int32_t* accepted) {
  const auto experts = static_cast<int64_t>(slot_of.size());
  for (int64_t group = 0; group < groups.count(); ++group) {
    const int64_t capacity = capacity_factor > 0.0
                                 ? expert_capacity(groups.size(group), k, capacity_factor, experts)
                                 : std::numeric_limits<int64_t>::max();
    std::vector<int64_t> queue(experts, 0);
    for (int64_t rank = 0; rank < k; ++rank) {
      for (int64_t t = groups.begin(group); t < groups.end(group); ++t) {
        const int32_t expert = choice[t * k + rank];
        const bool room = queue[expert]++ < capacity;
        accepted[t * k + rank] = room && slot_of[expert] >= 0 ? 1 : kDropped;
      }
    }
  }
}

struct IndexArrays {
  int32_t *offsets, *token, *token_offsets, *token_row, *choice_row;
};

/// Counting sort of the accepted choices by expert, stable in the tokens. `choice_row` holds the
/// acceptance marks on entry and the rows on return.
template <class Scalar>
void lay_rows(int64_t tokens, int64_t k, int64_t computed, const std::vector<int32_t>& slot_of,
              const int32_t* choice, const Scalar* gate_Tk, const IndexArrays& out, Scalar* gate) {
  std::vector<int32_t> cursor(computed + 1, 0);
  for (int64_t i = 0; i < tokens * k; ++i) {
    if (out.choice_row[i] != kDropped) ++cursor[slot_of[choice[i]] + 1];
  }
  for (int64_t e = 0; e < computed; ++e) cursor[e + 1] += cursor[e];
  std::copy(cursor.begin(), cursor.end(), out.offsets);

  int32_t pulled = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    out.token_offsets[t] = pulled;
    for (int64_t i = t * k; i < (t + 1) * k; ++i) {
      if (out.choice_row[i] == kDropped) continue;
      const int32_t row = cursor[slot_of[choice[i]]]++;
      out.token[row] = static_cast<int32_t>(t);
      gate[row] = gate_Tk[i];
      out.choice_row[i] = row;
      out.token_row[pulled++] = row;
    }
  }
  out.token_offsets[tokens] = pulled;
}

std::vector<int32_t> slots(int64_t experts, at::IntArrayRef kept) {
  std::vector<int32_t> slot_of(experts, kDropped);
  if (kept.empty()) {
    for (int64_t e = 0; e < experts; ++e) slot_of[e] = static_cast<int32_t>(e);
  }
  for (size_t i = 0; i < kept.size(); ++i) slot_of[kept[i]] = static_cast<int32_t>(i);
  return slot_of;
}

template <class Scalar>
void select_and_gate(const TokenChoices<Scalar>& choices, int64_t tokens) {
  at::parallel_for(0, tokens, kTokensPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (!choices.select(t)) fail("route_token_choice: the logits of token {} are not finite", t);
      choices.gates(t);
    }
  });
}

using RouteTensors =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

RouteTensors route_cpu(const at::Tensor& logits_in, int64_t k, bool softmax_all,
                       double capacity_factor, int64_t group_size, at::IntArrayRef kept) {
  check_route(logits_in, k, capacity_factor, group_size, kept);
  const at::Tensor logits = logits_in.contiguous();
  const int64_t tokens = logits.size(0);
  const int64_t experts = logits.size(1);
  const int64_t computed = kept.empty() ? experts : static_cast<int64_t>(kept.size());
  const int64_t bound =
      token_choice_row_bound(tokens, k, experts, computed, capacity_factor, group_size);
  const auto index = logits.options().dtype(at::kInt);
  at::Tensor offsets = at::empty({computed + 1}, index);
  at::Tensor token = at::zeros({bound}, index);
  at::Tensor gate = at::zeros({bound}, logits.options());
  at::Tensor token_offsets = at::empty({tokens + 1}, index);
  at::Tensor token_row = at::zeros({bound}, index);
  at::Tensor choice = at::empty({tokens, k}, index);
  at::Tensor choice_row = at::empty({tokens, k}, index);

  const std::vector<int32_t> slot_of = slots(experts, kept);
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "route_token_choice", [&] {
    std::vector<scalar_t> gate_Tk(tokens * k);
    select_and_gate<scalar_t>({logits.const_data_ptr<scalar_t>(), experts, k, softmax_all,
                               choice.mutable_data_ptr<int32_t>(), gate_Tk.data()},
                              tokens);
    const auto* choices = choice.const_data_ptr<int32_t>();
    mark_accepted(TokenGroups(tokens, group_size), slot_of, k, capacity_factor, choices,
                  choice_row.mutable_data_ptr<int32_t>());
    lay_rows<scalar_t>(
        tokens, k, computed, slot_of, choices, gate_Tk.data(),
        {offsets.mutable_data_ptr<int32_t>(), token.mutable_data_ptr<int32_t>(),
         token_offsets.mutable_data_ptr<int32_t>(), token_row.mutable_data_ptr<int32_t>(),
         choice_row.mutable_data_ptr<int32_t>()},
        gate.mutable_data_ptr<scalar_t>());
  });
  return {offsets, token, gate, token_offsets, token_row, choice, choice_row};
}

/// d loss / d logits of one token. With g the softmax that the gates come from and u_e the gradient
/// that arrives at expert e's gate (0 for drops): g_e * (u_e - sum_i g_i u_i) over the experts that
/// the softmax runs over.
template <class Scalar>
void route_backward_token(const Scalar* logits, const int32_t* choice, const int32_t* row,
                          const Scalar* grad_gate, int64_t experts, int64_t k, bool softmax_all,
                          Scalar* grad_logits) {
  const Scalar top = logits[choice[0]];
  Scalar sum = 0;
  if (softmax_all) {
    for (int64_t e = 0; e < experts; ++e) sum += std::exp(logits[e] - top);
  } else {
    for (int64_t rank = 0; rank < k; ++rank) sum += std::exp(logits[choice[rank]] - top);
  }
  Scalar inner = 0;
  for (int64_t rank = 0; rank < k; ++rank) {
    if (row[rank] != kDropped) {
      inner += std::exp(logits[choice[rank]] - top) / sum * grad_gate[row[rank]];
    }
  }
  for (int64_t e = 0; e < experts; ++e) {
    grad_logits[e] = softmax_all ? -std::exp(logits[e] - top) / sum * inner : Scalar(0);
  }
  for (int64_t rank = 0; rank < k; ++rank) {
    const Scalar gate = std::exp(logits[choice[rank]] - top) / sum;
    const Scalar arriving = row[rank] == kDropped ? Scalar(0) : grad_gate[row[rank]];
    grad_logits[choice[rank]] += gate * (softmax_all ? arriving : arriving - inner);
  }
}

at::Tensor route_backward_cpu(const at::Tensor& grad_gate, const at::Tensor& logits_in,
                              const at::Tensor& choice, const at::Tensor& choice_row,
                              bool softmax_all) {
  const at::Tensor logits = logits_in.contiguous();
  const int64_t experts = logits.size(1);
  const int64_t k = choice.size(1);
  at::Tensor grad_logits = at::empty_like(logits);
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "route_token_choice_backward", [&] {
    const auto* grad = grad_gate.const_data_ptr<scalar_t>();
    const auto* from = logits.const_data_ptr<scalar_t>();
    const auto* chosen = choice.const_data_ptr<int32_t>();
    const auto* rows = choice_row.const_data_ptr<int32_t>();
    auto* to = grad_logits.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, logits.size(0), kTokensPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        route_backward_token<scalar_t>(from + t * experts, chosen + t * k, rows + t * k, grad,
                                       experts, k, softmax_all, to + t * experts);
      }
    });
  });
  return grad_logits;
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  m.impl("route_token_choice", route_cpu);
  m.impl("route_token_choice_backward", route_backward_cpu);
}

}  // namespace
}  // namespace moesaic::ops
