// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/route_expert_choice.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "../check.h"
#include "../route_arguments.h"
#include "../route_math.h"
#include "../route_plan.h"
#include "moesaic/ops/diverged.h"
#include "nth_largest.h"
#include "row_layout.h"
#include "softmax.h"

namespace moesaic::ops {
namespace {

struct ExpertChoicePlan {
  int64_t tokens, experts, computed;
  std::vector<int32_t> columns;  ///< Ids of the computed experts.
  std::vector<int32_t> seen;     ///< Ids of the experts in a softmax over experts.
  TokenGroups cut;
  GroupRows rows;
  ExpertGate gate;

  ExpertChoicePlan(const at::Tensor& logits, const ExpertChoiceOptions& options)
      : tokens(logits.size(0)),
        experts(logits.size(1)),
        computed(computed_experts(options, experts)),
        columns(options.kept.begin(), options.kept.end()),
        seen(columns),
        cut(tokens, options.group_size),
        rows(expert_choice_rows(cut, options, experts)),
        gate(options.gate) {
    const auto all = [this] {
      std::vector<int32_t> list(experts);
      std::iota(list.begin(), list.end(), 0);
      return list;
    };
    if (columns.empty()) columns = all();
    if (seen.empty() || options.pruned == PrunedSelection::zero) seen = all();
  }

  int64_t bound() const { return computed * rows.total(); }
  int64_t first_row(int64_t slot, int64_t group) const {
    return slot * rows.total() + rows.before(group);
  }
  /// Returns the number of (group, expert) pairs per task.
  int64_t pair_grain() const { return std::max<int64_t>(1, kTokensPerTask / cut.group_size); }
  int64_t seen_count() const { return static_cast<int64_t>(seen.size()); }
  bool over_experts() const { return gate == ExpertGate::softmax_experts; }
};

/// Scores that experts compare: that of (token, slot) is from[token * stride + column[slot]].
template <class Scalar>
struct Scores {
  const Scalar* from;
  int64_t stride;
  std::vector<int32_t> columns;

  Scalar of(int64_t token, int64_t slot) const { return from[token * stride + columns[slot]]; }
};

/// Selection of one expert in one group; objects are reused to keep their scratch.
template <class Scalar>
class GroupExpert {
 public:
  GroupExpert(const ExpertChoicePlan& plan, const Scores<Scalar>& scores)
      : plan_(plan), scores_(scores) {}

  void enter(int64_t group, int64_t slot) {
    begin_ = plan_.cut.begin(group);
    count_ = plan_.rows.of(group);
    const int64_t size = plan_.cut.size(group);
    value_.resize(size);
    const Scalar* from = scores_.from + begin_ * scores_.stride + scores_.columns[slot];
    top_ = -std::numeric_limits<Scalar>::infinity();
    nan_ = false;
    for (int64_t i = 0; i < size; ++i) {
      const Scalar value = from[i * scores_.stride];
      value_[i] = value;
      nan_ |= value != value;
      top_ = value > top_ ? value : top_;
    }
  }

  /// Selects the expert's tokens, in order. Returns false if a score is NaN or none is finite.
  bool select(int32_t* token) {
    if (nan_ || !std::isfinite(top_)) return false;
    const auto size = static_cast<int64_t>(value_.size());
    keys_.resize(size);
    for (int64_t i = 0; i < size; ++i) keys_.keys[i] = order_key(value_[i]);
    auto [border, equal] = border_of_largest(keys_, count_);
    int64_t found = 0;
    for (int64_t i = 0; i < size && found < count_; ++i) {
      const bool at_border = keys_.keys[i] == border;
      token[found] = static_cast<int32_t>(begin_ + i);
      found += keys_.keys[i] > border || (at_border && equal > 0) ? 1 : 0;
      equal -= at_border ? 1 : 0;
    }
    return true;
  }

  void weigh(const int32_t* token, Scalar* gate) {
    if (plan_.gate == ExpertGate::one) {
      std::fill_n(gate, count_, Scalar(1));
      return;
    }
    for (int64_t i = 0; i < count_; ++i) gate[i] = value_[token[i] - begin_];
    if (plan_.over_experts()) return;
    softmax_terms(gate, count_, top_);
    const Scalar sum =
        plan_.gate == ExpertGate::softmax_tokens ? sum_over_group() : sum_of(gate, count_);
    for (int64_t i = 0; i < count_; ++i) gate[i] /= sum;
  }

  /// Computes d loss / d scores from u = grad_gate and g = gate of the selected rows: g_t (u_t -
  /// sum g u) over the tokens of the softmax. grad_logits: the expert's column, [T] by stride E.
  void gradient(const int32_t* token, const Scalar* gate, const Scalar* grad_gate,
                Scalar* grad_logits) {
    Scalar inner = 0;
    for (int64_t i = 0; i < count_; ++i) inner += gate[i] * grad_gate[i];
    if (plan_.gate == ExpertGate::softmax_tokens) {
      const Scalar sum = sum_over_group();
      for (size_t i = 0; i < value_.size(); ++i) {
        grad_logits[(begin_ + static_cast<int64_t>(i)) * plan_.experts] = -value_[i] / sum * inner;
      }
      for (int64_t i = 0; i < count_; ++i) {
        grad_logits[token[i] * plan_.experts] += gate[i] * grad_gate[i];
      }
    } else {
      for (int64_t i = 0; i < count_; ++i) {
        grad_logits[token[i] * plan_.experts] = gate[i] * (grad_gate[i] - inner);
      }
    }
  }

 private:
  static Scalar sum_of(const Scalar* values, int64_t count) {
    Scalar sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += values[i];
    return sum;
  }
  /// Replaces the scores of the group by their terms of the softmax; returns the sum.
  Scalar sum_over_group() {
    softmax_terms(value_.data(), static_cast<int64_t>(value_.size()), top_);
    return sum_of(value_.data(), static_cast<int64_t>(value_.size()));
  }

  const ExpertChoicePlan& plan_;
  const Scores<Scalar>& scores_;
  int64_t begin_ = 0, count_ = 0;
  Scalar top_ = 0;
  bool nan_ = false;
  std::vector<Scalar> value_;
  KeyRow<decltype(order_key(Scalar()))> keys_;
};

/// Writes the softmax over the seen experts of tokens [begin, end) to probabilities [end - begin,
/// seen]; returns false where it is undefined.
template <class Scalar>
bool expert_probabilities(const ExpertChoicePlan& plan, const Scalar* logits, int64_t begin,
                          int64_t end, Scalar* probabilities) {
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t i = 0; i < plan.seen_count(); ++i) {
      probabilities[(t - begin) * plan.seen_count() + i] = logits[t * plan.experts + plan.seen[i]];
    }
  }
  return softmax_rows(probabilities, end - begin, plan.seen_count()) < 0;
}

[[noreturn]] void fail_scores() {
  throw Diverged(
      "route_expert_choice: logits are NaN, infinite, or all -infinity in a group or token");
}

/// Returns the scores that experts compare: the logits or, for gates over experts, those gates, in
/// `probabilities` [T, seen].
template <class Scalar>
Scores<Scalar> expert_scores(const ExpertChoicePlan& plan, const Scalar* logits,
                             std::vector<Scalar>& probabilities) {
  if (!plan.over_experts()) return {logits, plan.experts, plan.columns};
  probabilities.resize(plan.tokens * plan.seen_count());
  std::atomic<bool> good = true;
  at::parallel_for(0, plan.tokens, kTokensPerTask, [&](int64_t begin, int64_t end) {
    if (!expert_probabilities(plan, logits, begin, end,
                              probabilities.data() + begin * plan.seen_count())) {
      good = false;
    }
  });
  if (!good) fail_scores();
  std::vector<int32_t> columns;
  for (const int32_t expert : plan.columns) {
    const auto place = std::lower_bound(plan.seen.begin(), plan.seen.end(), expert);
    columns.push_back(static_cast<int32_t>(place - plan.seen.begin()));
  }
  return {probabilities.data(), plan.seen_count(), columns};
}

/// Fills the rows that each token of a group combines, in the order of experts.
void fill_token_rows(const ExpertChoicePlan& plan, int64_t group, const int32_t* token,
                     int32_t* token_offsets, int32_t* token_row) {
  const int64_t begin = plan.cut.begin(group), size = plan.cut.size(group);
  const int64_t rows = plan.rows.of(group);
  std::vector<int32_t> cursor(size + 1, 0);
  for (int64_t slot = 0; slot < plan.computed; ++slot) {
    const int32_t* chosen = token + plan.first_row(slot, group);
    for (int64_t i = 0; i < rows; ++i) ++cursor[chosen[i] - begin + 1];
  }
  cursor[0] = static_cast<int32_t>(plan.computed * plan.rows.before(group));
  for (int64_t i = 0; i < size; ++i) {
    cursor[i + 1] += cursor[i];
    token_offsets[begin + i] = cursor[i];
  }
  for (int64_t slot = 0; slot < plan.computed; ++slot) {
    const int64_t first = plan.first_row(slot, group);
    for (int64_t row = first; row < first + rows; ++row) {
      token_row[cursor[token[row] - begin]++] = static_cast<int32_t>(row);
    }
  }
}

template <class Scalar>
void choose_tokens(const ExpertChoicePlan& plan, const Scalar* logits,
                   const RoutingArrays<Scalar>& out) {
  std::vector<Scalar> probabilities;
  const Scores<Scalar> scores = expert_scores(plan, logits, probabilities);
  const int64_t groups = plan.cut.count();
  std::atomic<bool> good = true;
  at::parallel_for(0, groups * plan.computed, plan.pair_grain(), [&](int64_t from, int64_t to) {
    GroupExpert<Scalar> expert(plan, scores);
    for (int64_t pair = from; pair < to; ++pair) {
      const int64_t group = pair / plan.computed, slot = pair % plan.computed;
      const int64_t first = plan.first_row(slot, group);
      expert.enter(group, slot);
      if (expert.select(out.token + first)) {
        expert.weigh(out.token + first, out.gate + first);
      } else {
        good = false;
      }
    }
  });
  if (!good) fail_scores();
  for (int64_t slot = 0; slot <= plan.computed; ++slot) {
    out.offsets[slot] = static_cast<int32_t>(slot * plan.rows.total());
  }
  at::parallel_for(0, groups, plan.pair_grain(), [&](int64_t from, int64_t to) {
    for (int64_t group = from; group < to; ++group) {
      fill_token_rows(plan, group, out.token, out.token_offsets, out.token_row);
    }
  });
  out.token_offsets[plan.tokens] = static_cast<int32_t>(plan.bound());
}

RowTensors route_expert_choice_cpu(const at::Tensor& logits_in,
                                   const ExpertChoiceOptions& options) {
  check_route_expert_choice(logits_in, options);
  const at::Tensor logits = logits_in.contiguous();
  const ExpertChoicePlan plan(logits, options);
  const auto index = logits.options().dtype(at::kInt);
  const at::Tensor offsets = at::empty({plan.computed + 1}, index);
  const at::Tensor token = at::empty({plan.bound()}, index);
  const at::Tensor gate = at::empty({plan.bound()}, logits.options());
  const at::Tensor token_offsets = at::empty({plan.tokens + 1}, index);
  const at::Tensor token_row = at::empty({plan.bound()}, index);
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "route_expert_choice", [&] {
    choose_tokens<scalar_t>(
        plan, logits.const_data_ptr<scalar_t>(),
        {offsets.mutable_data_ptr<int32_t>(), token.mutable_data_ptr<int32_t>(),
         token_offsets.mutable_data_ptr<int32_t>(), token_row.mutable_data_ptr<int32_t>(),
         gate.mutable_data_ptr<scalar_t>()});
  });
  return {offsets, token, gate, token_offsets, token_row};
}

/// Computes the gradient of gates over experts: p_e (u_e - sum_i p_i u_i) for each token, with u_e
/// the gradient of the gate of expert e's row, 0 without a row.
template <class Scalar>
void gradient_over_experts(const ExpertChoicePlan& plan, const Scalar* logits, const int32_t* token,
                           const Scalar* grad_gate, Scalar* grad_logits) {
  const int64_t rows = plan.rows.total();
  for (int64_t slot = 0; slot < plan.computed; ++slot) {
    for (int64_t row = slot * rows; row < (slot + 1) * rows; ++row) {
      grad_logits[token[row] * plan.experts + plan.columns[slot]] = grad_gate[row];
    }
  }
  at::parallel_for(0, plan.tokens, kTokensPerTask, [&](int64_t begin, int64_t end) {
    std::vector<Scalar> probabilities((end - begin) * plan.seen_count());
    expert_probabilities(plan, logits, begin, end, probabilities.data());
    for (int64_t t = begin; t < end; ++t) {
      const Scalar* probability = probabilities.data() + (t - begin) * plan.seen_count();
      Scalar* grad = grad_logits + t * plan.experts;
      Scalar inner = 0;
      for (int64_t i = 0; i < plan.seen_count(); ++i) inner += probability[i] * grad[plan.seen[i]];
      for (int64_t i = 0; i < plan.seen_count(); ++i) {
        Scalar& to = grad[plan.seen[i]];
        to = probability[i] * (to - inner);
      }
    }
  });
}

template <class Scalar>
void gradient_over_tokens(const ExpertChoicePlan& plan, const Scalar* logits, const int32_t* token,
                          const Scalar* gates, const Scalar* grad_gate, Scalar* grad_logits) {
  const Scores<Scalar> scores{logits, plan.experts, plan.columns};
  const int64_t pairs = plan.cut.count() * plan.computed;
  at::parallel_for(0, pairs, plan.pair_grain(), [&](int64_t from, int64_t to) {
    GroupExpert<Scalar> expert(plan, scores);
    for (int64_t pair = from; pair < to; ++pair) {
      const int64_t group = pair / plan.computed, slot = pair % plan.computed;
      const int64_t first = plan.first_row(slot, group);
      expert.enter(group, slot);
      expert.gradient(token + first, gates + first, grad_gate + first,
                      grad_logits + plan.columns[slot]);
    }
  });
}

at::Tensor route_expert_choice_backward_cpu(const at::Tensor& grad_in, const at::Tensor& logits_in,
                                            const at::Tensor& token_in, const at::Tensor& gates_in,
                                            const ExpertChoiceOptions& options) {
  check_route_expert_choice_backward(grad_in, logits_in, token_in, gates_in, options);
  const at::Tensor logits = logits_in.contiguous();
  const at::Tensor token = token_in.contiguous();
  const at::Tensor gates = gates_in.contiguous();
  const at::Tensor grad_gate = grad_in.contiguous();
  const ExpertChoicePlan plan(logits, options);
  const at::Tensor grad_logits = at::zeros(logits.sizes(), logits.options());
  if (plan.gate == ExpertGate::one) return grad_logits;
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "route_expert_choice_backward", [&] {
    const auto* from = logits.const_data_ptr<scalar_t>();
    const auto* chosen = token.const_data_ptr<int32_t>();
    const auto* arriving = grad_gate.const_data_ptr<scalar_t>();
    auto* to = grad_logits.mutable_data_ptr<scalar_t>();
    if (plan.over_experts()) {
      gradient_over_experts(plan, from, chosen, arriving, to);
    } else {
      gradient_over_tokens(plan, from, chosen, gates.const_data_ptr<scalar_t>(), arriving, to);
    }
  });
  return grad_logits;
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  m.impl("route_expert_choice", ExpertChoiceOperator::unpacked<route_expert_choice_cpu>);
  m.impl("route_expert_choice_backward",
         ExpertChoiceBackward::unpacked<route_expert_choice_backward_cpu>);
}

}  // namespace
}  // namespace moesaic::ops
