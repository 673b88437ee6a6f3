// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/distill.h"

#include <torch/torch.h>

#include <utility>

#include "moesaic/checkpoint/store.h"
#include "moesaic/nn/batch_shard.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/train/gradient_phase.h"
#include "moesaic/train/objective.h"

namespace moesaic {

at::Tensor distillation_loss(const std::string& loss, const at::Tensor& logits,
                             const at::Tensor& taught, double temperature) {
  const ClassificationLoss& rows = classification_losses().at(loss);
  const at::Tensor wanted = taught.detach().to(at::kFloat) / temperature;
  const Targets targets{.labels = {}, .soft_labels = rows.log_probabilities(wanted).exp()};
  const at::Tensor least = rows.of_rows(wanted, targets);
  const at::Tensor found = rows.of_rows(logits.to(at::kFloat) / temperature, targets);
  return (found - least).mean() * (temperature * temperature);
}

Teacher::Teacher(const std::string& path, at::Device device, std::string precision)
    : model_(load_model(path)), precision_(std::move(precision)) {
  model_->to(device);
  model_->eval();
  for (at::Tensor& parameter : model_->parameters()) parameter.requires_grad_(false);
}

at::Tensor Teacher::logits(const Model& student, const at::Tensor& images) const {
  const torch::NoGradGuard no_grad;
  nn::set_batch_shard(*model_, {nn::batch_shard_of(student).processes});
  const Autocast autocast(precision_, images.device());
  return model_->forward(images).logits;
}

std::string* find_teacher(PhaseConfig& phase) {
  if (phase.kind.find<GradientConfig>() == nullptr) return nullptr;
  Choice& loss = phase.kind.as<GradientConfig>().loss;
  if (loss.find<ClassificationObjectiveConfig>() == nullptr) return nullptr;
  auto& distill = loss.as<ClassificationObjectiveConfig>().distill;
  return distill ? &distill->teacher : nullptr;
}

std::string teacher_of(const PhaseConfig& phase) {
  PhaseConfig copy = phase;
  const std::string* const teacher = find_teacher(copy);
  return teacher == nullptr ? "" : *teacher;
}

}  // namespace moesaic
