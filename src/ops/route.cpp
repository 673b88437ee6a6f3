// SPDX-License-Identifier: Apache-2.0
#include "route.h"

#include <fmt/format.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <limits>

#include "moesaic/base/error.h"
#include "route_plan.h"

namespace moesaic::ops {
namespace {

using at::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor count_up(int64_t count, const Tensor& like) {
  return at::arange(count, like.options().dtype(at::kLong));
}

/// Returns these columns of x_TE; all of them where there are no ids.
Tensor columns_of(const Tensor& x_TE, at::IntArrayRef ids) {
  return ids.empty() ? x_TE : x_TE.index_select(1, index_on(x_TE.device(), ids.vec()));
}
/// Returns [T, experts] with x in these columns, else 0.
Tensor in_columns(const Tensor& x, at::IntArrayRef ids, int64_t experts) {
  if (ids.empty()) return x;
  const Tensor all = at::zeros({x.size(0), experts}, x.options());
  return all.index_copy_(1, index_on(x.device(), ids.vec()), x);
}

/// Returns the ids of the experts that selection and softmax see; none where they see all.
at::IntArrayRef seen_ids(const RouteOptions& options) {
  return options.pruned == PrunedSelection::reroute ? options.kept : at::IntArrayRef();
}

/// Returns the index of experts [T, n] among the computed ones, their number for the others.
Tensor slots_of(const Tensor& expert, int64_t experts, at::IntArrayRef kept) {
  if (kept.empty()) return expert.to(at::kLong);
  const auto computed = static_cast<int64_t>(kept.size());
  Tensor slot = at::full({experts}, computed, expert.options().dtype(at::kLong));
  slot.index_copy_(0, index_on(expert.device(), kept.vec()), count_up(computed, expert));
  return slot.index_select(0, expert.flatten()).view_as(expert);
}

/// Returns terms / sum over the last dimension.
Tensor softmax_of(const Tensor& x) {
  const Tensor terms = softmax_exp(x - x.amax({-1}, /*keepdim=*/true));
  return terms / sum_in_order(terms);
}

/// Rows of every entry (token, i) whose slot is that of a computed expert.
struct Rows {
  RowTensors of_experts;
  Tensor row_Tn;  ///< The row of each entry; -1 where it has none.
};

/// Lays rows out by expert, then by token. slot_Tn, int64: the expert of each entry among the
/// computed ones, `computed` for none, each at most once for a token; token_row has a token's
/// entries in their order.
Rows lay_out(const Tensor& slot_Tn, const Tensor& gate_Tn, int64_t computed, int64_t bound) {
  const int64_t tokens = slot_Tn.size(0);
  const at::TensorOptions index = slot_Tn.options().dtype(at::kInt);
  const auto ends = [&](const Tensor& counts) {
    return at::cat({at::zeros({1}, index), counts.cumsum(0, at::kInt)});
  };
  const Tensor taken_KT =
      at::zeros({computed + 1, tokens}, index).scatter_(0, slot_Tn.t(), 1).narrow(0, 0, computed);
  const Tensor row_TK = taken_KT.flatten().cumsum(0, at::kInt).sub_(1).view({computed, tokens}).t();
  const Tensor none_Tn = slot_Tn.eq(computed);
  const Tensor row_Tn = row_TK.gather(1, slot_Tn.clamp_max(computed - 1)).masked_fill_(none_Tn, -1);
  // What has no row goes behind the last.
  const auto scattered = [&](const Tensor& place, const Tensor& values) {
    return at::zeros({bound + 1}, values.options())
        .scatter_(0, place.flatten(), values.flatten())
        .narrow(0, 0, bound);
  };
  const Tensor row = row_Tn.to(at::kLong).masked_fill_(none_Tn, bound);
  const Tensor real = none_Tn.logical_not();
  const Tensor entry =
      real.flatten().cumsum(0, at::kLong).sub_(1).masked_fill_(none_Tn.flatten(), bound);
  const Tensor token_Tn = at::arange(tokens, index).unsqueeze(1).expand_as(row);
  return {{ends(taken_KT.sum(1)), scattered(row, token_Tn), scattered(row, gate_Tn),
           ends(real.sum(1)), scattered(entry, row_Tn)},
          row_Tn};
}

/// Returns the rows of the experts [T, K] that have a token, where tokens do not rank experts.
RowTensors rows_of(const Tensor& taken_TK, const Tensor& gate_TK, int64_t bound) {
  const int64_t computed = taken_TK.size(1);
  const Tensor slot_TK = count_up(computed, taken_TK)
                             .expand_as(taken_TK)
                             .masked_fill(taken_TK.logical_not(), computed);
  return lay_out(slot_TK, gate_TK, computed, bound).of_experts;
}

/// Returns the place of each choice in the queue of its expert and group: all first choices come
/// before the second ones, each rank in the order of tokens or of falling first gates.
Tensor places_in_queues(const Tensor& choice_Tk, const Tensor& gate_Tk, int64_t experts,
                        int64_t group_size, bool by_gate) {
  const int64_t tokens = choice_Tk.size(0), k = choice_Tk.size(1);
  const Tensor group = count_up(tokens, choice_Tk).div(group_size, "floor").unsqueeze(1);
  Tensor queue_Tk = choice_Tk + group * experts, first;
  if (by_gate) {
    first = gate_Tk.select(1, 0).argsort(/*stable=*/true, 0, /*descending=*/true);
    queue_Tk = queue_Tk.index_select(0, first);
  }
  // A stable sort lays the queues side by side.
  const auto [queue, entry] = queue_Tk.t().flatten().sort(/*stable=*/true, 0, false);
  const Tensor place = count_up(tokens * k, queue) - at::searchsorted(queue, queue);
  const Tensor place_Tk = at::empty_like(place).scatter_(0, entry, place).view({k, tokens}).t();
  return by_gate ? at::empty_like(place_Tk).index_copy_(0, first, place_Tk) : place_Tk;
}

/// Throws where logits on the CPU are invalid for a token.
void check_tokens(const char* op, const Tensor& bad_T, const char* problem) {
  if (!bad_T.is_cpu() || !bad_T.any().item<bool>()) return;
  throw DivergedError(fmt::format("{}: the logits of token {} are {}", op,
                                  bad_T.nonzero()[0].item<int64_t>(), problem));
}

}  // namespace

ChoiceTensors rows_of_choices(const Tensor& choice_Tk, const Tensor& gate_Tk, int64_t experts,
                              const RouteOptions& options) {
  const TokenChoiceSizes sizes(choice_Tk.size(0), experts, options);
  Tensor slot_Tk = slots_of(choice_Tk, experts, options.kept);
  if (sizes.is_limited) {
    const TokenGroups& cut = sizes.cut;
    const Tensor place_Tk = places_in_queues(choice_Tk.to(at::kLong), gate_Tk, experts,
                                             cut.group_size, options.capacity.batch_priority);
    const Tensor room_T = at::full({cut.tokens}, sizes.rows.full, slot_Tk.options());
    room_T.slice(0, cut.begin(cut.count() - 1)).fill_(sizes.rows.last);
    slot_Tk = slot_Tk.masked_fill(place_Tk.ge(room_T.unsqueeze(1)), sizes.computed);
  }
  const auto [by_expert, row_Tk] = lay_out(slot_Tk, gate_Tk, sizes.computed, sizes.bound);
  return std::tuple_cat(by_expert, std::tuple(choice_Tk.to(at::kInt).contiguous(), row_Tk));
}

ChoiceTensors token_choice(const Tensor& logits_TE, const RouteOptions& options) {
  // Refuses a capacity below one row before it looks at the logits.
  const TokenChoiceSizes sizes(logits_TE.size(0), logits_TE.size(1), options);
  const at::IntArrayRef seen = seen_ids(options);
  const Tensor logits = columns_of(logits_TE, seen);
  const auto [ranked, order] =
      logits.masked_fill(logits.isnan(), -kInfinity).sort(/*stable=*/true, 1, /*descending=*/true);
  Tensor choice_Tk = order.narrow(1, 0, sizes.k);
  if (!seen.empty()) {
    choice_Tk = index_on(logits.device(), options.kept)
                    .index_select(0, choice_Tk.flatten())
                    .view_as(choice_Tk);
  }
  const Tensor best_Tk = ranked.narrow(1, 0, sizes.k), top_T1 = ranked.narrow(1, 0, 1);
  // Where the logit is the gate, every choice has to be finite.
  const Tensor needed = options.gate == Gate::logit ? best_Tk : top_T1;
  const Tensor bad_T = logits.isnan().any(1).logical_or_(needed.isfinite().logical_not_().any(1));
  check_tokens("route_token_choice", bad_T, "NaN, infinite, or all -infinity");
  Tensor gate_Tk = best_Tk;
  if (options.gate == Gate::one) gate_Tk = at::ones_like(best_Tk);
  if (options.gate == Gate::softmax_selected || options.gate == Gate::softmax_all) {
    const Tensor& summed = options.gate == Gate::softmax_all ? logits : best_Tk;
    gate_Tk = softmax_exp(best_Tk - top_T1) / sum_in_order(softmax_exp(summed - top_T1));
  }
  return rows_of_choices(choice_Tk, gate_Tk.masked_fill(bad_T.unsqueeze(1), kNan), sizes.experts,
                         options);
}

/// The gradient of a softmax or of a selection of logits, from that of each expert's gate.
Tensor token_choice_backward(const Tensor& grad_gate, const Tensor& logits_TE,
                             const Tensor& choice_Tk, const Tensor& choice_row_Tk,
                             const RouteOptions& options) {
  const Tensor zeros_TE = at::zeros(logits_TE.sizes(), logits_TE.options());
  if (options.gate == Gate::one) return zeros_TE;
  const Tensor choice = choice_Tk.to(at::kLong);
  // Drops read a zero in front of the rows' gradients.
  const Tensor arriving_Tk = at::cat({grad_gate.new_zeros({1}), grad_gate})
                                 .index_select(0, choice_row_Tk.flatten() + 1)
                                 .view_as(choice);
  const auto through_softmax = [](const Tensor& grad, const Tensor& logits) {
    return at::_softmax_backward_data(grad, logits.softmax(1), 1, logits.scalar_type());
  };
  if (options.gate == Gate::softmax_selected) {
    return zeros_TE.scatter_(1, choice, through_softmax(arriving_Tk, logits_TE.gather(1, choice)));
  }
  const Tensor grad_TE = zeros_TE.scatter_(1, choice, arriving_Tk);
  if (options.gate == Gate::logit) return grad_TE;
  const at::IntArrayRef seen = seen_ids(options);
  return in_columns(through_softmax(columns_of(grad_TE, seen), columns_of(logits_TE, seen)), seen,
                    logits_TE.size(1));
}

namespace {

/// Groups are of equal sizes, but for a last one that may be smaller.
struct ExpertChoicePlan : ExpertChoiceSizes {
  ExpertChoicePlan(const Tensor& logits_TE, const RouteOptions& options)
      : ExpertChoiceSizes(logits_TE.size(0), logits_TE.size(1), options) {}

  /// Calls visit(view, rows) for the groups of one size: view(x) are those of x_KT, [K, groups, S].
  void each_size(const auto& visit) const {
    const auto visit_groups = [&](int64_t first, int64_t groups, int64_t size, int64_t each) {
      const int64_t begin = cut.begin(first);
      const auto view = [=, this](const Tensor& x_KT) {
        return x_KT.narrow(1, begin, groups * size).view({computed, groups, size});
      };
      if (groups > 0) visit(view, each);
    };
    const int64_t whole = cut.tokens / cut.group_size, rest = cut.tokens % cut.group_size;
    visit_groups(0, whole, cut.group_size, rows.full);
    if (rest > 0) visit_groups(whole, 1, rest, rows.last);
  }
};

/// Throws where the largest score on the CPU is not finite: one is NaN or infinite, or all are
/// -infinity.
void check_scores(const Tensor& top) {
  if (!top.is_cpu() || top.isfinite().all().item<bool>()) return;
  throw DivergedError(
      "route_expert_choice: logits are NaN, infinite, or all -infinity in a group or token");
}

/// Returns the scores that the computed experts compare, [T, K].
Tensor scores_of(const Tensor& logits_TE, const RouteOptions& options) {
  if (options.gate != Gate::softmax_all) return columns_of(logits_TE, options.kept);
  const at::IntArrayRef seen = seen_ids(options);
  const Tensor logits = columns_of(logits_TE, seen);
  check_scores(logits.amax({1}));
  return seen.empty() ? columns_of(softmax_of(logits), options.kept) : softmax_of(logits);
}

}  // namespace

RowTensors expert_choice(const Tensor& logits_TE, const RouteOptions& options) {
  const ExpertChoicePlan plan(logits_TE, options);
  const Tensor score_KT = scores_of(logits_TE, options).t().contiguous();
  const Tensor taken_KT = at::zeros_like(score_KT, at::kBool), gate_KT = at::empty_like(score_KT);
  plan.each_size([&](const auto& of_groups, int64_t rows) {
    const Tensor score = of_groups(score_KT), top = score.amax({2}, /*keepdim=*/true);
    check_scores(top);
    const Tensor order = std::get<1>(score.sort(/*stable=*/true, 2, /*descending=*/true));
    const Tensor taken = of_groups(taken_KT).scatter_(2, order.narrow(2, 0, rows), true);
    Tensor gate = score;
    if (options.gate == Gate::one) gate = at::ones_like(score);
    if (options.gate == Gate::softmax_tokens) gate = softmax_of(score);
    if (options.gate == Gate::softmax_selected) {
      const Tensor terms = softmax_exp(score - top).masked_fill_(taken.logical_not(), 0);
      gate = terms / sum_in_order(terms);
    }
    of_groups(gate_KT).copy_(gate.masked_fill(top.isfinite().logical_not(), kNan));
  });
  return rows_of(taken_KT.t(), gate_KT.t(), plan.bound());
}

/// With g the softmax of the gates and u the gradient of a row's gate (0 without a row):
/// g (u - sum of g u) over the tokens, or the experts, of the softmax.
Tensor expert_choice_backward(const Tensor& grad_gate, const Tensor& logits_TE, const Tensor& token,
                              const Tensor& gates, const RouteOptions& options) {
  const int64_t experts = logits_TE.size(1);
  const ExpertChoicePlan plan(logits_TE, options);
  if (options.gate == Gate::one || plan.bound() == 0) {
    return at::zeros(logits_TE.sizes(), logits_TE.options());
  }
  const auto of_experts = [&](const Tensor& x_A) { return x_A.reshape({plan.computed, -1}); };
  const Tensor token_K = of_experts(token.to(at::kLong)), u_K = of_experts(grad_gate);
  const auto scattered = [&](const Tensor& x_K) {
    return at::zeros({plan.computed, plan.cut.tokens}, x_K.options()).scatter_(1, token_K, x_K);
  };
  if (options.gate == Gate::softmax_all) {
    const at::IntArrayRef seen = seen_ids(options);
    const Tensor u_TE = in_columns(scattered(u_K).t(), options.kept, experts);
    const Tensor u = columns_of(u_TE, seen), g = softmax_of(columns_of(logits_TE, seen));
    return in_columns(g * (u - sum_in_order(g * u)), seen, experts).contiguous();
  }
  const Tensor through_K = of_experts(gates) * u_K, through_KT = scattered(through_K);
  const Tensor g_KT = scattered(of_experts(gates)), u_KT = scattered(u_K);
  const Tensor score_KT = columns_of(logits_TE, options.kept).t().contiguous();
  const bool over_all = options.gate == Gate::softmax_tokens;
  Tensor grad_KT = at::zeros_like(score_KT);
  plan.each_size([&](const auto& of_groups, int64_t) {
    const Tensor inner = sum_in_order(of_groups(through_KT));
    of_groups(grad_KT).copy_(over_all ? (softmax_of(of_groups(score_KT)) * inner).neg_()
                                      : of_groups(g_KT) * (of_groups(u_KT) - inner));
  });
  // Without a row there is no gradient, not even a negative zero.
  grad_KT = over_all ? grad_KT.scatter_add_(1, token_K, through_K)
                     : scattered(grad_KT.gather(1, token_K));
  return in_columns(grad_KT.t(), options.kept, experts).contiguous();
}

RowTensors adaptive(const Tensor& logits_TE, const RouteOptions& options) {
  const Tensor logits_TK = columns_of(logits_TE, options.kept), nan_TK = logits_TK.isnan();
  check_tokens("route_adaptive", nan_TK.any(1), "NaN");
  // A threshold between two numbers of a narrower type is not rounded to one of them.
  const Tensor taken_TK = logits_TK.to(at::kDouble).ge(options.threshold).logical_or_(nan_TK);
  const Tensor gate_TK = at::ones_like(logits_TK).masked_fill_(nan_TK, kNan);
  return rows_of(taken_TK, gate_TK, taken_TK.numel());
}

TORCH_LIBRARY_IMPL(moesaic, CompositeExplicitAutograd, m) {
  implement<TokenChoiceOperator, token_choice>(m);
  implement<TokenChoiceBackward, token_choice_backward>(m);
  implement<ExpertChoiceOperator, expert_choice>(m);
  implement<ExpertChoiceBackward, expert_choice_backward>(m);
  implement<AdaptiveOperator, adaptive>(m);
}

}  // namespace moesaic::ops
