// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/distill.h"

#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/models/registry.h"
#include "moesaic/nn/batch_shard.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/train/gradient_phase.h"

namespace moesaic {

at::Tensor distillation_loss(const std::string& loss, const at::Tensor& logits,
                             const at::Tensor& teacher_logits, double temperature) {
  const ClassificationLoss& rows = classification_losses().at(loss);
  const at::Tensor wanted = teacher_logits.detach().to(at::kFloat) / temperature;
  const Targets targets{.labels = {}, .soft_labels = rows.log_probabilities(wanted).exp()};
  const at::Tensor least = rows.row_losses(wanted, targets);
  const at::Tensor found = rows.row_losses(logits.to(at::kFloat) / temperature, targets);
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
  NamedSettings& loss = phase.kind.as<GradientConfig>().loss;
  if (loss.find<ClassificationObjectiveConfig>() == nullptr) return nullptr;
  auto& distill = loss.as<ClassificationObjectiveConfig>().distill;
  return distill ? &distill->teacher : nullptr;
}

std::optional<PlannedTeacher> teacher_in(const std::string& teacher,
                                         const SettingLocations& locations,
                                         std::vector<std::string> earlier,
                                         const std::vector<PhaseConfig>& phases,
                                         bool may_be_missing) {
  const std::string place = locations.find({"distill.teacher", "distill"});
  const std::string start = locations.at_place(place);
  if (std::ranges::find(phases, teacher, &PhaseConfig::name) != phases.end()) {
    earlier.emplace_back("a run or a checkpoint");
    fail_usage("{}: teacher '{}' is no earlier phase; choose {}", start, teacher,
               fmt::join(earlier, ", "));
  }
  if (!path_exists(teacher)) {
    const bool is_path = teacher.find('/') != std::string::npos;
    if (may_be_missing && is_path) {
      log_warning("{}: teacher {} is not here; it is left unchecked", start, teacher);
      return std::nullopt;
    }
    const std::string hint = is_path ? "" : did_you_mean(teacher, earlier);
    fail_usage("{}: teacher '{}' is neither an earlier phase nor a checkpoint{}", start, teacher,
               hint.empty() ? nearest_network(teacher) : "; " + hint);
  }
  return at_location(place, [&] {
    const Checkpoint found = load_newest_checkpoint(
        teacher, {.verify = false, .load_model = false, .load_optimizer = false});
    PlannedTeacher planned{build_meta_model(model_config(found)), class_names_of(found)};
    if (found.config.contains(kInputKey)) {
      const InputSpec input = input_spec_of(found, *planned.shape);
      planned.mean = input.mean;
      planned.std = input.std;
    }
    return std::optional(std::move(planned));
  });
}

void check_teacher(const PlannedTeacher& teacher, const SettingLocations& locations,
                   const Model& model, const std::vector<std::string>& classes,
                   const DatasetInfo& data) {
  const std::string start = locations.at({"distill.teacher", "distill"});
  const auto refuse = [&](const char* what) {
    fail_usage(
        "{0}: the teacher has other {1} than the network; choose a teacher with the network's {1}",
        start, what);
  };
  if (teacher.shape->input_shape() != model.input_shape()) refuse("inputs");
  if (teacher.shape->num_members() != model.num_members()) refuse("members");
  const bool named = !classes.empty() && !teacher.classes.empty();
  if (teacher.shape->num_classes() != model.num_classes() ||
      (named && teacher.classes != classes)) {
    refuse("classes");
  }
  const bool same = teacher.mean == data.mean && teacher.std == data.std;
  if (teacher.mean.empty() || same) return;
  log_warning(
      "{}: the teacher was trained on inputs of mean [{}] and std [{}] and gets those of [{}] and "
      "[{}]; set preprocess.mean and preprocess.std to the former",
      start, fmt::join(teacher.mean, ", "), fmt::join(teacher.std, ", "),
      fmt::join(data.mean, ", "), fmt::join(data.std, ", "));
}

}  // namespace moesaic
