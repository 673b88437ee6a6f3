// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/objective.h"

#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/ops/losses.h"

namespace moesaic {
namespace {

using AuxLoss = at::Tensor (*)(const at::Tensor&, int64_t);

const std::map<std::string, AuxLoss>& aux_losses() {
  static const std::map<std::string, AuxLoss> list = {{"gshard", gshard_loss},
                                                      {"importance", importance_loss}};
  return list;
}

at::Tensor sum_over_layers(const std::string& name, const ModelOutput& output) {
  const auto found = aux_losses().find(name);
  if (found == aux_losses().end()) {
    fail_usage("unknown auxiliary loss '{}'; {}", name, did_you_mean(name, aux_loss_names()));
  }
  std::vector<at::Tensor> losses;
  for (const RoutingRecord& record : output.routings) {
    losses.push_back(found->second(record.logits_TE, record.group_size));
  }
  if (losses.empty()) return at::zeros({}, output.logits.options().dtype(at::kFloat));
  return at::stack(losses).sum();
}

}  // namespace

std::vector<std::string> aux_loss_names() {
  std::vector<std::string> names;
  for (const auto& [name, unused] : aux_losses()) names.push_back(name);
  return names;
}

Objective compute_objective(const ModelOutput& output, const at::Tensor& labels,
                            const ObjectiveOptions& options) {
  Objective objective;
  objective.loss = at::cross_entropy_loss(output.logits.to(at::kFloat), labels, {},
                                          at::Reduction::Mean, -100, options.label_smoothing);
  objective.terms.emplace_back("cross_entropy", objective.loss);
  for (const auto& [name, weight] : options.aux_losses) {
    const at::Tensor loss = sum_over_layers(name, output);
    objective.terms.emplace_back(name, loss);
    objective.loss = objective.loss + weight * loss;
  }
  return objective;
}

}  // namespace moesaic
