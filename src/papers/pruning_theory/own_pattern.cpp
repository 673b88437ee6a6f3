// SPDX-License-Identifier: Apache-2.0
#include "own_pattern.h"

#include <ATen/ATen.h>

#include <variant>

#include "moesaic/ops/routing.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {

at::Tensor OwnPatternGates::proficiency() const {
  // Logits of a softmax that are equal give gates that are 1 / l but for rounding.
  const double full = (1.0 - 1e-5) / static_cast<double>(selected);
  return class_means(gate_NK.ge(full).to(at::kDouble));
}

at::Tensor OwnPatternGates::class_means(const at::Tensor& values_NK) const {
  const at::Tensor member_2N = at::stack({label_N.eq(0), label_N.eq(1)}).to(at::kDouble);
  return member_2N.mm(values_NK) / member_2N.sum(1, /*keepdim=*/true).clamp_min(1.0);
}

OwnPatternGates own_pattern_gates(Model& model, const std::shared_ptr<const Dataset>& data) {
  const MoEBlock block = model.moe_blocks()[0];
  const auto kept = static_cast<int64_t>(block.layer->kept().size());
  std::vector<at::Tensor> gates, labels;
  const auto add = [&](const EvaluatedBatch& batch) {
    const at::Tensor tokens = batch.images_BCHW.cpu(), &label = batch.labels_B;
    const Routing& routing = batch.output.routings.at(0).routing;
    const auto rows = routing.offsets[-1].item<int64_t>();
    const at::Tensor token = routing.token.narrow(0, 0, rows).to(at::kCPU, at::kLong);
    const at::Tensor example = token.div(tokens.size(3), "floor");
    const at::Tensor is_own =
        tokens.flatten().index_select(0, token).eq(label.index_select(0, example));
    const at::Tensor expert = row_experts(routing).narrow(0, 0, rows).to(at::kCPU, at::kLong);
    at::Tensor gate_BK = at::zeros({label.size(0), kept}, at::kFloat);
    gate_BK.view({-1}).index_add_(
        0, (example * kept + expert).masked_select(is_own),
        routing.gate.narrow(0, 0, rows).to(at::kCPU, at::kFloat).masked_select(is_own));
    gates.push_back(gate_BK);
    labels.push_back(label);
  };
  constexpr int64_t kBatch = 500;
  evaluate(model, data, {.batch_size = kBatch, .on_batch = add});
  return {at::cat(gates), at::cat(labels),
          std::get<ExpertChoiceOptions>(block.layer->options().rule).rows};
}

}  // namespace moesaic
