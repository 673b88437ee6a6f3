// SPDX-License-Identifier: Apache-2.0
// Expert-choice routing: schema, checks, shape function and gradient. route.cpp computes it, on a
// GPU the kernels of cuda/route_expert_choice.cpp.
#include "moesaic/ops/route_expert_choice.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <cmath>

#include "check.h"
#include "moesaic/base/error.h"
#include "names.h"
#include "route_arguments.h"
#include "route_segments.h"
#include "row_bound.h"

namespace moesaic {
namespace ops {
namespace {

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def(
      "route_expert_choice(Tensor logits, SymInt rows=0, float capacity_factor=0., "
      "SymInt group_size=0, "
      "int gate=0, int[] kept=[], bool reroute=False, int capacity_rounding=0, "
      "int capacity_multiple_of=4) -> (Tensor offsets, Tensor token, Tensor gate, "
      "Tensor token_offsets, Tensor token_row)");
  m.def(
      "route_expert_choice_backward(Tensor grad_gate, Tensor logits, Tensor token, Tensor gates, "
      "SymInt rows, float capacity_factor, SymInt group_size, int gate, int[] kept, bool reroute, "
      "int capacity_rounding, int capacity_multiple_of) -> Tensor");
}

c10::SymInt row_bound(const at::Tensor& logits, const ExpertChoiceCall& call) {
  return computed_experts(call.known, logits.sym_size(1)) *
         expert_choice_rows(logits.sym_size(0), logits.sym_size(1), call);
}

/// Throws where an expert would select more tokens than the smallest group has.
void check_selected(const char* op, const at::Tensor& logits, const ExpertChoiceCall& call) {
  const auto tokens = logits.sym_size(0).maybe_as_int(), rows = call.rows.maybe_as_int();
  const auto group_size = call.group_size.maybe_as_int();
  if (!tokens || !rows || !group_size || *tokens == 0) return;  // The kernel knows the sizes.
  const TokenGroups cut(*tokens, *group_size);
  const int64_t smallest = cut.size(cut.count() - 1);
  if (*rows > smallest) {
    fail("{}: an expert cannot select {} of the {} tokens of a group", op, *rows, smallest);
  }
}

}  // namespace

void check_route_expert_choice(const at::Tensor& logits, const ExpertChoiceCall& call) {
  constexpr const char* kOp = "route_expert_choice";
  check_logits(kOp, logits);
  const ExpertChoiceOptions& options = call.known;
  const c10::SymInt tokens = logits.sym_size(0), experts = logits.sym_size(1);
  const c10::SymInt computed = check_kept(kOp, options.kept, experts);
  check_rows(kOp, "rows", call.rows);
  check_capacity(kOp, capacity_of(options));
  if ((call.rows > 0) == (options.capacity_factor > 0.0)) {
    fail("{}: give either rows or capacity_factor, found {} and {}", kOp, c10::str(call.rows),
         options.capacity_factor);
  }
  check_rows(kOp, "group_size", call.group_size);
  check_selected(kOp, logits, call);
  check_enum(kOp, "gate", static_cast<int64_t>(options.gate), expert_gate_names());
  check_row_count(kOp, expert_choice_rows(tokens, experts, call), computed);
  check_row_count(kOp, tokens, 1);
}

void check_route_expert_choice_backward(const at::Tensor& grad_gate, const at::Tensor& logits,
                                        const at::Tensor& token, const at::Tensor& gates,
                                        const ExpertChoiceCall& call) {
  constexpr const char* kOp = "route_expert_choice_backward";
  check_route_expert_choice(logits, call);
  const c10::SymInt bound = row_bound(logits, call);
  for (const auto* tensor : {&grad_gate, &token, &gates}) {
    check_shape(kOp, "every argument of rows", *tensor, {bound});
    check_same_device(kOp, "every argument", *tensor, logits);
  }
  check_same_dtype(kOp, "grad_gate", grad_gate, logits);
  check_same_dtype(kOp, "gates", gates, logits);
  check_index(kOp, "token", token);
  check_values_between(kOp, "token", token, 0, logits.sym_size(0));
}

namespace {

RowTensors route_expert_choice_meta(const at::Tensor& logits, const ExpertChoiceCall& call) {
  check_route_expert_choice(logits, call);
  return unfilled_rows(logits, computed_experts(call.known, logits.sym_size(1)),
                       row_bound(logits, call));
}

at::Tensor route_expert_choice_backward_meta(const at::Tensor& grad_gate, const at::Tensor& logits,
                                             const at::Tensor& token, const at::Tensor& gates,
                                             const ExpertChoiceCall& call) {
  check_route_expert_choice_backward(grad_gate, logits, token, gates, call);
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

class RouteExpertChoice : public torch::autograd::Function<RouteExpertChoice> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& logits,
                                                const ExpertChoiceCall& call) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [offsets, token, gates, token_offsets, token_row] =
        ExpertChoiceOperator::call(logits, call);
    context->save_for_backward({logits, token, gates});
    context->saved_data["options"] = ExpertChoiceBackward::saved(call);
    context->mark_non_differentiable({offsets, token, token_offsets, token_row});
    // Zeros for what has no gradient would be written at every step.
    context->set_materialize_grads(false);
    return {offsets, token, gates, token_offsets, token_row};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    if (!grads[2].defined()) return torch::autograd::variable_list(2);
    const auto saved = context->get_saved_variables();
    const ExpertChoiceCall call = ExpertChoiceBackward::restored(context->saved_data["options"]);
    return {ExpertChoiceBackward::call(grads[2], saved[0], saved[1], saved[2], call), {}};
  }
};

RowTensors route_expert_choice_autograd(const at::Tensor& logits, const ExpertChoiceCall& call) {
  if (!at::GradMode::is_enabled() || !logits.requires_grad()) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return ExpertChoiceOperator::call(logits, call);
  }
  const auto out = RouteExpertChoice::apply(logits, call);
  return {out[0], out[1], out[2], out[3], out[4]};
}

TORCH_LIBRARY_IMPL(moesaic, Meta, m) {
  m.impl("route_expert_choice", ExpertChoiceOperator::unpacked<route_expert_choice_meta>);
  m.impl("route_expert_choice_backward",
         ExpertChoiceBackward::unpacked<route_expert_choice_backward_meta>);
}
TORCH_LIBRARY_IMPL(moesaic, Autograd, m) {
  m.impl("route_expert_choice", ExpertChoiceOperator::unpacked<route_expert_choice_autograd>);
  // A second derivative throws instead of counting as 0.
  m.impl("route_expert_choice_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace ops

std::vector<std::string> expert_gate_names() {
  return {"softmax_selected", "softmax_tokens", "softmax_experts", "one"};
}
ExpertGate expert_gate_from_name(std::string_view name) {
  return ops::enum_from_name<ExpertGate>("gate of expert choice", name, expert_gate_names());
}

Routing route_expert_choice(const at::Tensor& logits_TE, const ExpertChoiceOptions& options) {
  auto [offsets, token, gate, token_offsets, token_row] =
      ops::ExpertChoiceOperator::call(logits_TE, options);
  const at::Tensor choice = at::empty({token_offsets.size(0) - 1, 0}, token.options());
  return {offsets, token, gate, token_offsets, token_row, choice};
}

}  // namespace moesaic
