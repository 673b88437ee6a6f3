// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/classification_objective.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "moesaic/ops/autocast.h"
#include "moesaic/train/aux_losses.h"
#include "moesaic/train/places.h"
#include "objectives.h"

namespace moesaic {
namespace {

/// Returns the accuracy in % of all rows of logits, an image's members in a row.
at::Tensor accuracy_of(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor hits = logits.argmax(1).view({labels.size(0), -1}).eq(labels.unsqueeze(1));
  return hits.to(at::kFloat).mean() * 100;
}

class ClassificationObjective final : public Objective {
 public:
  ClassificationObjective(std::string loss, ClassificationObjectiveConfig config,
                          std::string precision)
      : loss_(std::move(loss)), config_(std::move(config)), precision_(std::move(precision)) {}

  LossTerms operator()(Model& model, const Batch& batch,
                       const at::Generator& random) const override {
    const ModelOutput output = [&] {
      const Autocast autocast(precision_, batch.images.device());
      return model.forward(batch.images, random);
    }();
    return classification_terms(loss_, config_, output, batch.labels, batch.soft_labels);
  }

 private:
  std::string loss_;
  ClassificationObjectiveConfig config_;
  std::string precision_;
};

void check_members(const std::string& loss, const PhasePlaces& places, const Model& model) {
  const ClassificationLoss& found = classification_losses().at(loss);
  const bool ensemble = model.members() > 1;
  if (ensemble == found.of_ensemble) return;
  const std::string setting = model.setting_paths().members;
  const std::string place =
      PhasePlaces::blame({places.of({"loss"}), places.of_model(setting, "loss")});
  if (ensemble) {
    fail_usage(
        "{}: phase '{}': loss '{}' is for one network, the model is an ensemble of {}; choose '{}'",
        place, places.phase().name, loss, model.members(), found.counterpart);
  }
  fail_usage(
      "{}: phase '{}': loss '{}' is for the members of an ensemble, the model is one network{}; "
      "choose '{}'",
      place, places.phase().name, loss, setting.empty() ? "" : fmt::format(" ({} 1)", setting),
      found.counterpart);
}

void check_classes(const std::string& loss, const PhasePlaces& places, const DatasetInfo& data) {
  if (!data.classes.empty()) return;
  fail_usage(
      "{}: phase '{}': loss '{}' compares logits with classes, but the targets of '{}' are "
      "real numbers; choose squared",
      places.of({"loss", "data"}), places.phase().name, loss, data.name);
}

}  // namespace

ConfigProblem config_problem(const ClassificationObjectiveConfig& config) {
  return aux_losses_problem(config.aux_losses);
}

LossTerms classification_terms(const std::string& loss, const ClassificationObjectiveConfig& config,
                               const ModelOutput& output, const at::Tensor& labels,
                               const at::Tensor& soft_labels) {
  const Targets targets{labels, soft_labels, config.label_smoothing};
  LossTerms sum{training_losses(loss, output.logits, targets).mean()};
  sum.terms = {{"accuracy", accuracy_of(output.logits, labels)}, {"cross_entropy", sum.loss}};
  for (const auto& [name, weight] : config.aux_losses) {
    const at::Tensor term = aux_loss(name, output);
    sum.terms.emplace_back(name, term);
    sum.loss = sum.loss + weight * term;
  }
  return sum;
}

ObjectiveKind classification_objective(const std::string& loss) {
  ObjectiveKind kind;
  kind.settings = Choice(loss, ClassificationObjectiveConfig{});
  kind.meaning = classification_losses().at(loss).meaning;
  kind.make = [loss](const Choice& settings, const Model& model, const std::string& precision) {
    auto config = settings.as<ClassificationObjectiveConfig>();
    config.aux_losses = aux_loss_weights(config.aux_losses, model);
    return std::make_unique<ClassificationObjective>(loss, std::move(config), precision);
  };
  kind.check = [loss](const Choice& settings, const PhasePlaces& places, const Model& model,
                      const DatasetInfo& data) {
    check_classes(loss, places, data);
    check_aux_losses(settings.as<ClassificationObjectiveConfig>().aux_losses, places, model);
    check_members(loss, places, model);
  };
  return kind;
}

}  // namespace moesaic
