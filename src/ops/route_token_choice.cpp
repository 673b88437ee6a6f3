// SPDX-License-Identifier: Apache-2.0
// Token-choice routing: schema, checks, shape function and gradient. The kernels are
// cpu/route_token_choice.cpp and its siblings; route.cpp computes it on other devices.
#include "moesaic/ops/route_token_choice.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <cmath>

#include "check.h"
#include "moesaic/base/error.h"
#include "names.h"
#include "route_arguments.h"
#include "row_bound.h"

namespace moesaic {
namespace ops {
namespace {

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def(
      "route_token_choice(Tensor logits, int k, int gate=1, float capacity_factor=0., "
      "SymInt group_size=0, int[] kept=[], bool batch_priority=False, bool reroute=False, "
      "int capacity_rounding=0, int capacity_multiple_of=4, SymInt capacity=0) -> (Tensor offsets, "
      "Tensor token, Tensor gate, "
      "Tensor token_offsets, Tensor token_row, Tensor choice, Tensor choice_row)");
  m.def(
      "route_token_choice_backward(Tensor grad_gate, Tensor logits, Tensor choice, "
      "Tensor choice_row, int gate, int[] kept, bool reroute) -> Tensor");
}

}  // namespace

void check_route_token_choice(const at::Tensor& logits, const TokenChoiceCall& call) {
  constexpr const char* kOp = "route_token_choice";
  check_logits(kOp, logits);
  const TokenChoiceOptions& options = call.known;
  const int64_t k = options.k;
  const c10::SymInt experts = logits.sym_size(1);
  const c10::SymInt computed = check_kept(kOp, options.kept, experts);
  if (k < 1 || experts < k) {
    fail("{}: k must be between 1 and the {} experts, found {}", kOp, c10::str(experts), k);
  }
  if (options.pruned == PrunedSelection::reroute && computed < k) {
    fail("{}: k = {} choices among the {} kept experts are too many", kOp, k, c10::str(computed));
  }
  check_enum(kOp, "gate", static_cast<int64_t>(options.gate), gate_names());
  check_capacity(kOp, capacity_of(options));
  check_rows(kOp, "capacity", call.rows);
  if (options.capacity_factor > 0.0 && call.rows > 0) {
    fail("{}: give either capacity or capacity_factor, found {} and {}", kOp, c10::str(call.rows),
         options.capacity_factor);
  }
  check_rows(kOp, "group_size", call.group_size);
  check_row_count(kOp, logits.sym_size(0), k);
}

void check_route_token_choice_backward(const at::Tensor& grad_gate, const at::Tensor& logits,
                                       const at::Tensor& choice, const at::Tensor& choice_row,
                                       const TokenChoiceOptions& options) {
  constexpr const char* kOp = "route_token_choice_backward";
  check_logits(kOp, logits);
  check_shape(kOp, "grad_gate", grad_gate, {-1});
  check_same_dtype(kOp, "grad_gate", grad_gate, logits);
  check_shape(kOp, "choice", choice, {logits.sym_size(0), -1});
  if (choice.sym_size(1) < 1) fail("{}: choice must have a column", kOp);
  check_shape(kOp, "choice_row", choice_row, {logits.sym_size(0), choice.sym_size(1)});
  check_index(kOp, "choice", choice);
  check_index(kOp, "choice_row", choice_row);
  for (const auto* tensor : {&grad_gate, &choice, &choice_row}) {
    check_same_device(kOp, "every argument", *tensor, logits);
  }
  check_values_between(kOp, "choice", choice, 0, logits.sym_size(1));
  check_values_between(kOp, "choice_row", choice_row, -1, grad_gate.sym_size(0));
  check_enum(kOp, "gate", static_cast<int64_t>(options.gate), gate_names());
  check_kept(kOp, options.kept, logits.sym_size(1));
}

namespace {

ChoiceTensors route_token_choice_meta(const at::Tensor& logits, const TokenChoiceCall& call) {
  check_route_token_choice(logits, call);
  const c10::SymInt tokens = logits.sym_size(0), experts = logits.sym_size(1), k = call.known.k;
  const c10::SymInt computed = computed_experts(call.known, experts);
  const c10::SymInt bound = token_choice_row_bound(tokens, experts, call);
  const auto choices = [&] {
    return std::tuple(at::empty_symint({tokens, k}, logits.options().dtype(at::kInt)));
  };
  return std::tuple_cat(unfilled_rows(logits, computed, bound), choices(), choices());
}

at::Tensor route_token_choice_backward_meta(const at::Tensor& grad_gate, const at::Tensor& logits,
                                            const at::Tensor& choice, const at::Tensor& choice_row,
                                            const TokenChoiceOptions& options) {
  check_route_token_choice_backward(grad_gate, logits, choice, choice_row, options);
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

class RouteTokenChoice : public torch::autograd::Function<RouteTokenChoice> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& logits,
                                                const TokenChoiceCall& call) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [offsets, token, gates, token_offsets, token_row, choice, choice_row] =
        TokenChoiceOperator::call(logits, call);
    context->save_for_backward({logits, choice, choice_row});
    context->saved_data["options"] = TokenChoiceBackward::saved(call.known);
    context->mark_non_differentiable(
        {offsets, token, token_offsets, token_row, choice, choice_row});
    // Zeros for what has no gradient would be written at every step.
    context->set_materialize_grads(false);
    return {offsets, token, gates, token_offsets, token_row, choice, choice_row};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    if (!grads[2].defined()) return torch::autograd::variable_list(2);
    const auto saved = context->get_saved_variables();
    const TokenChoiceOptions options =
        TokenChoiceBackward::restored(context->saved_data["options"]);
    return {TokenChoiceBackward::call(grads[2], saved[0], saved[1], saved[2], options), {}};
  }
};

ChoiceTensors route_token_choice_autograd(const at::Tensor& logits, const TokenChoiceCall& call) {
  if (!at::GradMode::is_enabled() || !logits.requires_grad()) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return TokenChoiceOperator::call(logits, call);
  }
  const auto out = RouteTokenChoice::apply(logits, call);
  return {out[0], out[1], out[2], out[3], out[4], out[5], out[6]};
}

TORCH_LIBRARY_IMPL(moesaic, Meta, m) {
  m.impl("route_token_choice", TokenChoiceOperator::unpacked<route_token_choice_meta>);
  m.impl("route_token_choice_backward",
         TokenChoiceBackward::unpacked<route_token_choice_backward_meta>);
}
TORCH_LIBRARY_IMPL(moesaic, Autograd, m) {
  m.impl("route_token_choice", TokenChoiceOperator::unpacked<route_token_choice_autograd>);
  // A second derivative throws instead of counting as 0.
  m.impl("route_token_choice_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace ops

std::vector<std::string> gate_names() {
  return {"softmax_selected", "softmax_all", "logit", "one"};
}
Gate gate_from_name(std::string_view name) {
  return ops::enum_from_name<Gate>("gate", name, gate_names());
}

Routing route_token_choice(const at::Tensor& logits_TE, const TokenChoiceOptions& options) {
  auto [offsets, token, gate, token_offsets, token_row, choice, choice_row] =
      ops::TokenChoiceOperator::call(logits_TE, options);
  return {offsets, token, gate, token_offsets, token_row, choice};
}

}  // namespace moesaic
