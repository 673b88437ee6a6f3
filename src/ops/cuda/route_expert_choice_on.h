// SPDX-License-Identifier: Apache-2.0
// Expert choice on a device: scores by expert, a border for every expert of every group, then rows
// for the tokens within the borders. Invalid scores cannot be reported without a synchronisation:
// where one of a group is NaN, or none is finite, the expert's gates of that group are NaN.
// `Device` starts kernels and owns memory: the current stream of a GPU (tensors.h), or the serial
// device of a test.
#pragma once

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "../check.h"
#include "../kernels/route_expert_choice.h"
#include "../route_plan.h"
#include "moesaic/ops/route_expert_choice.h"
#include "route_rule.h"
#include "tensor_data.h"

namespace moesaic::ops::on_device {

using at::Tensor;
using kernels::ExpertGateKind;

static_assert(static_cast<int>(ExpertGate::softmax_selected) ==
                  static_cast<int>(ExpertGateKind::softmax_selected) &&
              static_cast<int>(ExpertGate::softmax_tokens) ==
                  static_cast<int>(ExpertGateKind::softmax_tokens) &&
              static_cast<int>(ExpertGate::softmax_experts) ==
                  static_cast<int>(ExpertGateKind::softmax_experts) &&
              static_cast<int>(ExpertGate::one) == static_cast<int>(ExpertGateKind::one));

/// Values of a call that depend on sizes and options only.
struct ExpertChoicePlan {
  int64_t tokens, experts, slots;
  TokenGroups cut;
  GroupRows rows;
  ExpertGateKind kind;
  bool all_seen;  ///< Whether the softmax over experts includes pruned ones.

  ExpertChoicePlan(const Tensor& logits, const ExpertChoiceOptions& options)
      : tokens(logits.size(0)),
        experts(logits.size(1)),
        slots(computed_experts(options, experts)),
        cut(tokens, options.group_size),
        rows(expert_choice_rows(cut, options, experts)),
        kind(static_cast<ExpertGateKind>(options.gate)),
        all_seen(options.pruned == PrunedSelection::zero) {}

  kernels::ExpertColumns computed(const kernels::KeptView& kept) const {
    return {static_cast<int32_t>(slots), kept};
  }
  /// Returns the experts that a softmax over experts includes.
  kernels::ExpertColumns seen(const kernels::KeptView& kept) const {
    if (!all_seen) return computed(kept);
    return {static_cast<int32_t>(experts), {nullptr, nullptr}};
  }
  int64_t pairs() const { return cut.count() * slots; }
  /// Returns the number of threads of a block that processes a group.
  int threads() const { return std::max(scan_threads(cut.group_size), kernels::kDigits); }
};

constexpr int kTokenThreads = 256;

/// Returns the scores that experts compare, [written.slots, T].
template <class Scalar, class Device>
Tensor write_scores(const Tensor& logits, const ExpertChoicePlan& plan,
                    const kernels::ExpertColumns& written, const kernels::ExpertColumns& seen,
                    const Device& device) {
  const Tensor scores = at::empty({written.slots, plan.tokens}, logits.options());
  const kernels::WriteScores<Scalar> kernel{in<Scalar>(logits),
                                            plan.tokens,
                                            plan.experts,
                                            written,
                                            seen,
                                            plan.kind == ExpertGateKind::softmax_experts,
                                            out<Scalar>(scores)};
  device.template start<256>(kernel, kernels::divide_up<int64_t>(plan.tokens, kTokenThreads),
                             kTokenThreads, 0);
  return scores;
}

template <class Scalar, class Device>
void choose_tokens(const Tensor& logits, const ExpertChoicePlan& plan,
                   const kernels::KeptView& kept, const RuleTensors& to, const Device& device) {
  const Tensor scores =
      write_scores<Scalar>(logits, plan, plan.computed(kept), plan.seen(kept), device);
  using Border = kernels::ExpertBorder<Scalar>;
  const Tensor memory = at::empty({plan.pairs() * static_cast<int64_t>(sizeof(Border))},
                                  logits.options().dtype(at::kByte));
  const auto slots = static_cast<int32_t>(plan.slots);
  const kernels::FindExpertBorders<Scalar> find{plan.cut,  plan.rows,          slots,
                                                plan.kind, in<Scalar>(scores), out<Border>(memory)};
  device.template start<kernels::kSelectThreads>(find, plan.pairs(), plan.threads(),
                                                 find.shared_bytes(plan.threads()));
  const kernels::ExpertChoiceRule<Scalar> rule{in<Scalar>(scores), in<Border>(memory), plan.cut,
                                               slots, plan.kind};
  route_by_rule<Scalar>(logits, plan.slots, rule, to.arrays<Scalar>(), device);
}

template <class Device>
RowTensors route_expert_choice_on(const Device& device, const Tensor& logits_in,
                                  const ExpertChoiceOptions& options) {
  check_route_expert_choice(logits_in, options);
  const Tensor logits = logits_in.contiguous();
  const KeptScope computed("route_expert_choice", logits, options.kept, device);
  const ExpertChoicePlan plan(logits, options);
  const RuleTensors to(logits, plan.slots, plan.slots * plan.rows.total());
  with_logit_type(logits, [&](auto tag) {
    using Scalar = typename decltype(tag)::type;
    choose_tokens<Scalar>(logits, plan, computed.view(), to, device);
  });
  return {to.offsets, to.token, to.gate, to.token_offsets, to.token_row};
}

template <class Scalar, class Device>
void gradient_over_experts(const Tensor& logits, const ExpertChoicePlan& plan,
                           const kernels::KeptView& kept, const Tensor& token,
                           const Tensor& grad_gate, const Tensor& grad_logits,
                           const Device& device) {
  const kernels::ExpertColumns seen = plan.seen(kept);
  const Tensor probabilities = write_scores<Scalar>(logits, plan, seen, seen, device);
  const kernels::ScatterRows<Scalar> scatter{
      in<Scalar>(grad_gate),   in<int32_t>(token), token.size(0),
      plan.rows.total(),       plan.experts,       kept,
      out<Scalar>(grad_logits)};
  device.template start<256>(scatter, kernels::divide_up<int64_t>(token.size(0), kTokenThreads),
                             kTokenThreads, 0);
  const kernels::SoftmaxGradient<Scalar> kernel{in<Scalar>(probabilities), plan.tokens,
                                                plan.experts, seen, out<Scalar>(grad_logits)};
  device.template start<256>(kernel, kernels::divide_up<int64_t>(plan.tokens, kTokenThreads),
                             kTokenThreads, 0);
}

template <class Scalar, class Device>
void gradient_over_tokens(const Tensor& logits, const ExpertChoicePlan& plan,
                          const kernels::KeptView& kept, const Tensor& token, const Tensor& gates,
                          const Tensor& grad_gate, const Tensor& grad_logits,
                          const Device& device) {
  const kernels::ExpertColumns computed = plan.computed(kept);
  const Tensor scores = write_scores<Scalar>(logits, plan, computed, computed, device);
  const kernels::ExpertGatesGradient<Scalar> kernel{in<Scalar>(grad_gate),
                                                    in<Scalar>(gates),
                                                    in<int32_t>(token),
                                                    in<Scalar>(scores),
                                                    plan.cut,
                                                    plan.rows,
                                                    plan.experts,
                                                    static_cast<int32_t>(plan.slots),
                                                    kept,
                                                    plan.kind == ExpertGateKind::softmax_tokens,
                                                    out<Scalar>(grad_logits)};
  device.template start<kernels::kSelectThreads>(kernel, plan.pairs(), plan.threads(),
                                                 kernel.shared_bytes(plan.threads()));
}

template <class Device>
Tensor route_expert_choice_backward_on(const Device& device, const Tensor& grad_in,
                                       const Tensor& logits_in, const Tensor& token_in,
                                       const Tensor& gates_in, const ExpertChoiceOptions& options) {
  check_route_expert_choice_backward(grad_in, logits_in, token_in, gates_in, options);
  const Tensor logits = logits_in.contiguous();
  const Tensor token = token_in.contiguous();
  const Tensor gates = gates_in.contiguous();
  const Tensor grad_gate = grad_in.contiguous();
  const KeptScope computed("route_expert_choice_backward", logits, options.kept, device);
  const ExpertChoicePlan plan(logits, options);
  Tensor grad_logits = at::zeros(logits.sizes(), logits.options());
  if (plan.kind == ExpertGateKind::one) return grad_logits;
  with_logit_type(logits, [&](auto tag) {
    using Scalar = typename decltype(tag)::type;
    if (plan.kind == ExpertGateKind::softmax_experts) {
      gradient_over_experts<Scalar>(logits, plan, computed.view(), token, grad_gate, grad_logits,
                                    device);
    } else {
      gradient_over_tokens<Scalar>(logits, plan, computed.view(), token, gates, grad_gate,
                                   grad_logits, device);
    }
  });
  return grad_logits;
}
}  // namespace moesaic::ops::on_device
