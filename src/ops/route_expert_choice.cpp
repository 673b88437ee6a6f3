// SPDX-License-Identifier: Apache-2.0
// Expert-choice routing: schema, checks, shape function and gradient. The kernels are
// cpu/route_expert_choice.cpp and its siblings.
#include "moesaic/ops/route_expert_choice.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <cmath>

#include "check.h"
#include "moesaic/base/error.h"
#include "names.h"
#include "route_arguments.h"
#include "route_plan.h"

namespace moesaic {
namespace ops {
namespace {

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def(
      "route_expert_choice(Tensor logits, int rows=0, float capacity_factor=0., int group_size=0, "
      "int gate=0, int[] kept=[], bool reroute=False, int capacity_rounding=0, "
      "int capacity_multiple_of=4) -> (Tensor offsets, Tensor token, Tensor gate, "
      "Tensor token_offsets, Tensor token_row)");
  m.def(
      "route_expert_choice_backward(Tensor grad_gate, Tensor logits, Tensor token, Tensor gates, "
      "int rows, float capacity_factor, int group_size, int gate, int[] kept, bool reroute, "
      "int capacity_rounding, int capacity_multiple_of) -> Tensor");
}

int64_t expert_choice_row_bound(const at::Tensor& logits, const ExpertChoiceOptions& options) {
  const TokenGroups cut(logits.size(0), options.group_size);
  return computed_experts(options, logits.size(1)) *
         expert_choice_rows(cut, options, logits.size(1)).total();
}

}  // namespace

void check_route_expert_choice(const at::Tensor& logits, const ExpertChoiceOptions& options) {
  constexpr const char* kOp = "route_expert_choice";
  check_logits(kOp, logits);
  const int64_t tokens = logits.size(0), rows = options.rows;
  const int64_t computed = check_kept(kOp, options.kept, logits.size(1));
  if (rows < 0) fail("{}: rows must not be negative: {}", kOp, rows);
  check_capacity(kOp, capacity_of(options));
  if ((rows > 0) == (options.capacity_factor > 0.0)) {
    fail("{}: give either rows or capacity_factor, found {} and {}", kOp, rows,
         options.capacity_factor);
  }
  if (options.group_size < 0) {
    fail("{}: group_size must not be negative: {}", kOp, options.group_size);
  }
  const TokenGroups cut(tokens, options.group_size);
  const int64_t smallest = tokens > 0 ? cut.size(cut.count() - 1) : 0;
  if (tokens > 0 && rows > smallest) {
    fail("{}: an expert cannot select {} of the {} tokens of a group", kOp, rows, smallest);
  }
  check_enum(kOp, "gate", static_cast<int64_t>(options.gate), expert_gate_names());
  check_row_count(kOp, expert_choice_rows(cut, options, logits.size(1)).total(), computed);
  check_row_count(kOp, tokens, 1);
}

void check_route_expert_choice_backward(const at::Tensor& grad_gate, const at::Tensor& logits,
                                        const at::Tensor& token, const at::Tensor& gates,
                                        const ExpertChoiceOptions& options) {
  constexpr const char* kOp = "route_expert_choice_backward";
  check_route_expert_choice(logits, options);
  const int64_t bound = expert_choice_row_bound(logits, options);
  for (const auto* tensor : {&grad_gate, &token, &gates}) {
    check_shape(kOp, "every argument of rows", *tensor, {bound});
    check_same_device(kOp, "every argument", *tensor, logits);
  }
  check_same_dtype(kOp, "grad_gate", grad_gate, logits);
  check_same_dtype(kOp, "gates", gates, logits);
  check_index(kOp, "token", token);
  check_values_between(kOp, "token", token, 0, logits.size(0));
}

namespace {

RowTensors route_expert_choice_meta(const at::Tensor& logits, const ExpertChoiceOptions& options) {
  check_route_expert_choice(logits, options);
  const int64_t bound = expert_choice_row_bound(logits, options);
  const auto index = logits.options().dtype(at::kInt);
  return {at::empty({computed_experts(options, logits.size(1)) + 1}, index),
          at::empty({bound}, index), at::empty({bound}, logits.options()),
          at::empty({logits.size(0) + 1}, index), at::empty({bound}, index)};
}

at::Tensor route_expert_choice_backward_meta(const at::Tensor& grad_gate, const at::Tensor& logits,
                                             const at::Tensor& token, const at::Tensor& gates,
                                             const ExpertChoiceOptions& options) {
  check_route_expert_choice_backward(grad_gate, logits, token, gates, options);
  return at::empty(logits.sizes(), logits.options());
}

class RouteExpertChoice : public torch::autograd::Function<RouteExpertChoice> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& logits,
                                                const ExpertChoiceOptions& options) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [offsets, token, gates, token_offsets, token_row] =
        ExpertChoiceOperator::call(logits, options);
    context->save_for_backward({logits, token, gates});
    context->saved_data["options"] = ExpertChoiceBackward::saved(options);
    context->mark_non_differentiable({offsets, token, token_offsets, token_row});
    return {offsets, token, gates, token_offsets, token_row};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const ExpertChoiceOptions options =
        ExpertChoiceBackward::restored(context->saved_data["options"]);
    return {ExpertChoiceBackward::call(grads[2], saved[0], saved[1], saved[2], options), {}};
  }
};

RowTensors route_expert_choice_autograd(const at::Tensor& logits,
                                        const ExpertChoiceOptions& options) {
  if (!at::GradMode::is_enabled() || !logits.requires_grad()) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return ExpertChoiceOperator::call(logits, options);
  }
  const auto out = RouteExpertChoice::apply(logits, options);
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
