// SPDX-License-Identifier: Apache-2.0
// The operators of the routings: schemas, checks, shape functions and gradients. route.cpp computes
// them on every device; the kernels in its place are cpu/route_token_choice.cpp and, on a GPU,
// those of cuda/.
#include <c10/core/SymFloat.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <cmath>

#include "check.h"
#include "moesaic/ops/enum_names.h"
#include "route_arguments.h"
#include "route_segments.h"

namespace moesaic {
namespace ops {
namespace {

// Bounds of the rows for the shape functions: what route_plan.h computes for the kernels, in
// operations that the symbols of a compiler have too.

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
SymInt over_groups(const SymInt& tokens, const SymInt& group_size, const auto& rows) {
  if (tokens.maybe_as_int() == 0) return 0;
  if (group_size.maybe_as_int() == 0) return rows(tokens);
  return (tokens - 1) / group_size * rows(group_size) + rows((tokens - 1) % group_size + 1);
}

/// Returns the upper bound A of the rows of a token-choice routing.
SymInt token_choice_row_bound(const SymInt& tokens, const SymInt& experts, const RouteCall& call) {
  const SymInt computed = computed_experts(call.known, experts);
  const SymInt selected = tokens * computed.min(call.known.k);
  const bool fixed = call.rows.maybe_as_int() != 0;
  if (!fixed && call.known.capacity.factor == 0.0) return selected;
  const SymInt seen = seen_experts(call.known, experts);
  const SymInt rows = over_groups(tokens, call.group_size, [&](const SymInt& group) {
    return group.min(fixed ? call.rows
                           : capacity_of_group(group, call.known.k, call.known.capacity, seen));
  });
  return selected.min(computed * rows);
}

/// Returns how many tokens an expert selects in all groups together.
SymInt expert_choice_rows(const SymInt& tokens, const SymInt& experts, const RouteCall& call) {
  const SymInt seen = seen_experts(call.known, experts);
  return over_groups(tokens, call.group_size, [&](const SymInt& group) {
    if (call.rows.maybe_as_int() != 0) return call.rows;
    return group.min(capacity_of_group(group, 1, call.known.capacity, seen));
  });
}

SymInt max_rows(const at::Tensor& logits, const RouteCall& call) {
  return computed_experts(call.known, logits.sym_size(1)) *
         expert_choice_rows(logits.sym_size(0), logits.sym_size(1), call);
}

/// Throws where an expert would select more tokens than the smallest group has.
void check_selected(const char* op, const at::Tensor& logits, const RouteCall& call) {
  const auto tokens = logits.sym_size(0).maybe_as_int(), rows = call.rows.maybe_as_int();
  const auto group_size = call.group_size.maybe_as_int();
  if (!tokens || !rows || !group_size || *tokens == 0) return;  // The kernel knows the sizes.
  const TokenGroups cut(*tokens, *group_size);
  const int64_t smallest = cut.size(cut.count() - 1);
  if (*rows > smallest) {
    fail("{}: an expert cannot select {} of the {} tokens of a group", op, *rows, smallest);
  }
}

/// Throws unless the gate is one of token choice.
void check_token_gate(const char* op, Gate gate) {
  if (gate == Gate::softmax_tokens) fail("{}: the gate softmax_tokens is of expert choice", op);
  std::vector<std::string> names = gate_names();
  names.resize(static_cast<size_t>(Gate::softmax_tokens));  // It is the last.
  check_enum(op, "gate", static_cast<int64_t>(gate), names);
}

}  // namespace

RowTensors unfilled_rows(const at::Tensor& logits_TE, const SymInt& computed, const SymInt& bound) {
  const at::TensorOptions index = logits_TE.options().dtype(at::kInt);
  return {at::empty_symint({computed + 1}, index), at::empty_symint({bound}, index),
          at::empty_symint({bound}, logits_TE.options()),
          at::empty_symint({logits_TE.sym_size(0) + 1}, index), at::empty_symint({bound}, index)};
}

void TokenChoicePacking::check(const at::Tensor& logits, const RouteCall& call) {
  constexpr const char* kOp = "route_token_choice";
  check_logits(kOp, logits);
  const RouteOptions& options = call.known;
  const int64_t k = options.k;
  const SymInt experts = logits.sym_size(1);
  const SymInt computed = check_kept(kOp, options.kept, experts);
  if (k < 1 || experts < k) {
    fail("{}: k must be between 1 and the {} experts, found {}", kOp, c10::str(experts), k);
  }
  if (options.pruned == PrunedSelection::reroute && computed < k) {
    fail("{}: k = {} choices among the {} kept experts are too many", kOp, k, c10::str(computed));
  }
  check_token_gate(kOp, options.gate);
  check_capacity(kOp, options.capacity);
  check_rows(kOp, "capacity", call.rows);
  if (options.capacity.factor > 0.0 && call.rows > 0) {
    fail("{}: give either capacity or capacity_factor, found {} and {}", kOp, c10::str(call.rows),
         options.capacity.factor);
  }
  check_rows(kOp, "group_size", call.group_size);
  check_row_count(kOp, logits.sym_size(0), k);
}

void TokenChoiceBackwardPacking::check(const at::Tensor& grad_gate, const at::Tensor& logits,
                                       const at::Tensor& choice, const at::Tensor& choice_row,
                                       const RouteOptions& options) {
  constexpr const char* kOp = "route_token_choice_backward";
  check_logits(kOp, logits);
  check_like(kOp, "grad_gate", grad_gate, {-1}, logits);
  check_index(kOp, "choice", choice, {logits.sym_size(0), -1}, logits);
  if (choice.sym_size(1) < 1) fail("{}: choice must have a column", kOp);
  check_index(kOp, "choice_row", choice_row, {logits.sym_size(0), choice.sym_size(1)}, logits);
  check_values_between(kOp, "choice", choice, 0, logits.sym_size(1));
  check_values_between(kOp, "choice_row", choice_row, -1, grad_gate.sym_size(0));
  check_token_gate(kOp, options.gate);
  check_kept(kOp, options.kept, logits.sym_size(1));
}

void ExpertChoicePacking::check(const at::Tensor& logits, const RouteCall& call) {
  constexpr const char* kOp = "route_expert_choice";
  check_logits(kOp, logits);
  const RouteOptions& options = call.known;
  const SymInt tokens = logits.sym_size(0), experts = logits.sym_size(1);
  const SymInt computed = check_kept(kOp, options.kept, experts);
  check_rows(kOp, "rows", call.rows);
  check_capacity(kOp, options.capacity);
  if ((call.rows > 0) == (options.capacity.factor > 0.0)) {
    fail("{}: give either rows or capacity_factor, found {} and {}", kOp, c10::str(call.rows),
         options.capacity.factor);
  }
  check_rows(kOp, "group_size", call.group_size);
  check_selected(kOp, logits, call);
  check_row_count(kOp, expert_choice_rows(tokens, experts, call), computed);
  check_row_count(kOp, tokens, 1);
}

void ExpertChoiceBackwardPacking::check(const at::Tensor& grad_gate, const at::Tensor& logits,
                                        const at::Tensor& token, const at::Tensor& gates,
                                        const RouteCall& call) {
  constexpr const char* kOp = "route_expert_choice_backward";
  ExpertChoicePacking::check(logits, call);
  const SymInt bound = max_rows(logits, call);
  check_like(kOp, "grad_gate", grad_gate, {bound}, logits);
  check_like(kOp, "gates", gates, {bound}, logits);
  check_index(kOp, "token", token, {bound}, logits);
  check_values_between(kOp, "token", token, 0, logits.sym_size(0));
}

void AdaptivePacking::check(const at::Tensor& logits, const RouteOptions& options) {
  constexpr const char* kOp = "route_adaptive";
  check_logits(kOp, logits);
  check_row_count(kOp, logits.sym_size(0), check_kept(kOp, options.kept, logits.sym_size(1)));
  if (std::isnan(options.threshold)) fail("{}: threshold must be a number, found nan", kOp);
}

namespace {

ChoiceTensors token_choice_shapes(const at::Tensor& logits, const RouteCall& call) {
  const SymInt tokens = logits.sym_size(0), experts = logits.sym_size(1), k = call.known.k;
  const SymInt computed = computed_experts(call.known, experts);
  const SymInt bound = token_choice_row_bound(tokens, experts, call);
  const auto choices = [&] {
    return std::tuple(at::empty_symint({tokens, k}, logits.options().dtype(at::kInt)));
  };
  return std::tuple_cat(unfilled_rows(logits, computed, bound), choices(), choices());
}

RowTensors expert_choice_shapes(const at::Tensor& logits, const RouteCall& call) {
  return unfilled_rows(logits, computed_experts(call.known, logits.sym_size(1)),
                       max_rows(logits, call));
}

/// Shapes of both gradients.
at::Tensor backward_shapes(const at::Tensor&, const at::Tensor& logits, const at::Tensor&,
                           const at::Tensor&, const RouteCall&) {
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

RowTensors adaptive_shapes(const at::Tensor& logits, const RouteOptions& options) {
  const SymInt computed = computed_experts(options, logits.sym_size(1));
  return unfilled_rows(logits, computed, logits.sym_size(0) * computed);
}

/// Autograd of a routing by its gates, the third output: the gradient takes theirs, the logits, and
/// the outputs `first` and `second`.
template <class Forward, class Backward, size_t first, size_t second>
class ThroughGates
    : public torch::autograd::Function<ThroughGates<Forward, Backward, first, second>> {
  using Out = typename Forward::Result;

 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& logits, const RouteCall& call) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto out =
        std::apply([](const auto&... each) { return torch::autograd::variable_list{each...}; },
                   Forward::call(logits, call));
    context->save_for_backward({logits, out[first], out[second]});
    context->saved_data["options"] = Backward::saved(call);
    torch::autograd::variable_list indices = out;
    indices.erase(indices.begin() + 2);
    context->mark_non_differentiable(indices);
    // Zeros for what has no gradient would be written at every step.
    context->set_materialize_grads(false);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    if (!grads[2].defined()) return torch::autograd::variable_list(2);
    const auto saved = context->get_saved_variables();
    return {Backward::call(grads[2], saved[0], saved[1], saved[2],
                           Backward::restored(context->saved_data["options"])),
            {}};
  }

  /// What autograd calls.
  static Out route(const at::Tensor& logits, const RouteCall& call) {
    if (!torch::autograd::compute_requires_grad(logits)) {
      const at::AutoDispatchBelowADInplaceOrView guard;
      return Forward::call(logits, call);
    }
    const auto out = ThroughGates::apply(logits, call);
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return Out{out[i]...};
    }
    (std::make_index_sequence<std::tuple_size_v<Out>>());
  }
};
using TokenChoiceGates = ThroughGates<TokenChoiceOperator, TokenChoiceBackward, 5, 6>;
using ExpertChoiceGates = ThroughGates<ExpertChoiceOperator, ExpertChoiceBackward, 1, 2>;

RowTensors route_adaptive_autograd(const at::Tensor& logits, const RouteOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return AdaptiveOperator::call(logits, options);
}

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  define<TokenChoiceOperator, token_choice_shapes,
         TokenChoiceOperator::run<TokenChoiceGates::route>>(
      m,
      "route_token_choice(Tensor logits, int k, int gate=1, float capacity_factor=0., "
      "SymInt group_size=0, int[] kept=[], bool batch_priority=False, bool reroute=False, "
      "int capacity_rounding=0, int capacity_multiple_of=4, SymInt capacity=0) -> (Tensor offsets, "
      "Tensor token, Tensor gate, Tensor token_offsets, Tensor token_row, Tensor choice, "
      "Tensor choice_row)");
  define<TokenChoiceBackward, backward_shapes>(
      m,
      "route_token_choice_backward(Tensor grad_gate, Tensor logits, Tensor choice, "
      "Tensor choice_row, int gate, int[] kept, bool reroute) -> Tensor");
  define<ExpertChoiceOperator, expert_choice_shapes,
         ExpertChoiceOperator::run<ExpertChoiceGates::route>>(
      m,
      "route_expert_choice(Tensor logits, SymInt rows=0, float capacity_factor=0., "
      "SymInt group_size=0, int gate=0, int[] kept=[], bool reroute=False, int "
      "capacity_rounding=0, "
      "int capacity_multiple_of=4) -> (Tensor offsets, Tensor token, Tensor gate, "
      "Tensor token_offsets, Tensor token_row)");
  define<ExpertChoiceBackward, backward_shapes>(
      m,
      "route_expert_choice_backward(Tensor grad_gate, Tensor logits, Tensor token, Tensor gates, "
      "SymInt rows, float capacity_factor, SymInt group_size, int gate, int[] kept, bool reroute, "
      "int capacity_rounding, int capacity_multiple_of) -> Tensor");
  define<AdaptiveOperator, adaptive_shapes, AdaptiveOperator::run<route_adaptive_autograd>>(
      m,
      "route_adaptive(Tensor logits, float threshold=0., int[] kept=[]) -> (Tensor offsets, "
      "Tensor token, Tensor gate, Tensor token_offsets, Tensor token_row)");
}

}  // namespace
}  // namespace ops

Routing route(const at::Tensor& logits_TE, const RouteOptions& options) {
  if (options.is_token_choice()) {
    auto [offsets, token, gate, token_offsets, token_row, choice, choice_row] =
        ops::TokenChoiceOperator::call(logits_TE, options);
    return {offsets, token, gate, token_offsets, token_row, choice};
  }
  auto [offsets, token, gate, token_offsets, token_row] =
      options.is_expert_choice() ? ops::ExpertChoiceOperator::call(logits_TE, options)
                                 : ops::AdaptiveOperator::call(logits_TE, options);
  // Tokens do not rank experts.
  const at::Tensor choice = at::empty({token_offsets.size(0) - 1, 0}, token.options());
  return {offsets, token, gate, token_offsets, token_row, choice};
}

}  // namespace moesaic
