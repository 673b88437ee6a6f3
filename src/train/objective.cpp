// SPDX-License-Identifier: Apache-2.0
// Losses of classes and the objectives that minimise them, whose registry is at the end.
#include "moesaic/train/objective.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "moesaic/ops/autocast.h"
#include "moesaic/train/distill.h"

namespace moesaic {
namespace {

/// Returns smoothed targets, [B, classes] float32.
at::Tensor dense_targets(const Targets& targets, int64_t classes) {
  const at::Tensor plain = targets.soft_labels.defined()
                               ? targets.soft_labels.to(at::kFloat)
                               : at::one_hot(targets.labels, classes).to(at::kFloat);
  if (targets.smoothing == 0.0) return plain;
  return plain * (1.0 - targets.smoothing) + targets.smoothing / static_cast<double>(classes);
}

/// Returns the log of the mean over members of exp(log_BMC), [B, classes].
at::Tensor log_mean_exp(const at::Tensor& log_BMC) {
  return log_BMC.logsumexp({1}) - std::log(static_cast<double>(log_BMC.size(1)));
}

template <bool Twice>
at::Tensor softmax_of_rows(const at::Tensor& logits_RC, const Targets& targets) {
  const at::Tensor& wanted = targets.soft_labels.defined() ? targets.soft_labels : targets.labels;
  return at::cross_entropy_loss(Twice ? logits_RC.softmax(1) : logits_RC, wanted, {},
                                at::Reduction::None, -100, targets.smoothing);
}

at::Tensor log_softmax_probabilities(const at::Tensor& logits) {
  return logits.log_softmax(-1);
}

at::Tensor softmax_of_mean(const at::Tensor& logits_BMC, const at::Tensor& targets_BC) {
  return -(targets_BC * log_mean_exp(log_softmax_probabilities(logits_BMC))).sum(1);
}

/// log_on and log_off are log p and log (1 - p).
at::Tensor binary_cross_entropy(const at::Tensor& log_on, const at::Tensor& log_off,
                                const at::Tensor& targets) {
  return -(targets * log_on + (1.0 - targets) * log_off).sum(1);
}

at::Tensor sigmoid_of_rows(const at::Tensor& logits_RC, const Targets& targets) {
  return binary_cross_entropy(at::log_sigmoid(logits_RC), at::log_sigmoid(-logits_RC),
                              dense_targets(targets, logits_RC.size(1)));
}

at::Tensor sigmoid_of_mean(const at::Tensor& logits_BMC, const at::Tensor& targets_BC) {
  return binary_cross_entropy(log_mean_exp(at::log_sigmoid(logits_BMC)),
                              log_mean_exp(at::log_sigmoid(-logits_BMC)), targets_BC);
}

ClassificationLoss ensemble_loss_of(ClassificationLoss loss, const std::string& of_one_network) {
  loss.description += ", of each member of an ensemble; evaluated on their mean probabilities";
  loss.is_ensemble_loss = true;
  loss.counterpart = of_one_network;
  return loss;
}

/// Rows of logits that belong to one image.
int64_t members_of(const std::string& name, const at::Tensor& logits, const Targets& targets) {
  const ClassificationLoss& loss = classification_losses().at(name);
  const int64_t images = targets.labels.size(0), rows = logits.size(0);
  const int64_t members = images > 0 ? rows / images : 1;
  if (members < 1 || members * images != rows) {
    fail("loss '{}': {} rows of logits for {} images", name, rows, images);
  }
  if (members > 1 && !loss.is_ensemble_loss) {
    fail_usage("loss '{}' takes one row of logits an image, found {}; choose {}", name, members,
               loss.counterpart);
  }
  return members;
}

at::Tensor by_image(const at::Tensor& logits, int64_t members) {
  return logits.to(at::kFloat).view({-1, members, logits.size(1)});
}

/// An objective of the network's output, whose products run in `precision`, and of the logits of a
/// teacher, undefined without one: what that one computes is free before the network's activations
/// are made.
class OfOutput final : public Objective {
 public:
  using Terms = std::function<LossTerms(const ModelOutput& output, const Batch& batch,
                                        const at::Tensor& teacher_logits)>;

  OfOutput(std::string precision, Terms terms, std::optional<Teacher> teacher = {})
      : precision_(std::move(precision)), terms_(std::move(terms)), teacher_(std::move(teacher)) {}

  LossTerms operator()(Model& model, const Batch& batch,
                       const at::Generator& random) const override {
    const at::Tensor teacher_logits =
        teacher_ ? teacher_->logits(model, batch.inputs) : at::Tensor();
    const ModelOutput output = [&] {
      const Autocast autocast(precision_, batch.inputs.device());
      return model.forward(batch.inputs, random);
    }();
    return terms_(output, batch, teacher_logits);
  }

 private:
  std::string precision_;
  Terms terms_;
  std::optional<Teacher> teacher_;
};

/// Adds auxiliary losses by their weights.
LossTerms with_aux_losses(LossTerms sum, const std::map<std::string, double>& weights,
                          const ModelOutput& output) {
  for (const auto& [name, weight] : weights) {
    const at::Tensor term = aux_loss(name, output);
    sum.terms.emplace_back(name, term);
    sum.loss = sum.loss + weight * term;
  }
  return sum;
}

/// Returns the accuracy in % of all rows of logits, an image's members in a row.
at::Tensor accuracy_of(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor hits = logits.argmax(1).view({labels.size(0), -1}).eq(labels.unsqueeze(1));
  return hits.to(at::kFloat).mean() * 100;
}

void check_members(const std::string& loss, const SettingLocations& locations, const Model& model) {
  const ClassificationLoss& found = classification_losses().at(loss);
  const bool ensemble = model.num_members() > 1;
  if (ensemble == found.is_ensemble_loss) return;
  const std::string setting = model.setting_paths().members;
  const std::string start = locations.at_place(SettingLocations::preferred(
      {locations.find({"loss"}), locations.find_in_model(setting, "loss")}));
  if (ensemble) {
    fail_usage("{}: loss '{}' is for one network, the model is an ensemble of {}; choose '{}'",
               start, loss, model.num_members(), found.counterpart);
  }
  fail_usage(
      "{}: loss '{}' is for the members of an ensemble, the model is one network{}; choose '{}'",
      start, loss, setting.empty() ? "" : fmt::format(" ({} 1)", setting), found.counterpart);
}

/// Refuses an ensemble for a loss of one network.
void check_is_one(const std::string& loss, const SettingLocations& locations, const Model& model,
                  const std::string& choice) {
  if (model.num_members() <= 1) return;
  fail_usage("{}: loss '{}' is for one network, the model is an ensemble of {}{}",
             locations.at_place(locations.find_in_model(model.setting_paths().members, "loss")),
             loss, model.num_members(), choice);
}

ObjectiveKind classification_objective(const std::string& loss) {
  ObjectiveKind kind = {.settings = NamedSettings(loss, ClassificationObjectiveConfig{}),
                        .description = classification_losses().at(loss).description,
                        .takes_soft_labels = true};
  kind.make = [loss](const NamedSettings& settings, const Model& model,
                     const std::string& precision) -> std::unique_ptr<Objective> {
    auto config = settings.as<ClassificationObjectiveConfig>();
    config.aux_losses = aux_loss_weights(config.aux_losses, model);
    std::optional<Teacher> teacher;
    if (config.distill) teacher.emplace(config.distill->teacher, model.device(), precision);
    return std::make_unique<OfOutput>(
        precision,
        [loss, config = std::move(config)](const auto& output, const Batch& batch,
                                           const at::Tensor& teacher_logits) {
          LossTerms sum =
              classification_terms(loss, config, output, batch.labels, batch.soft_labels);
          if (!config.distill) return sum;
          const at::Tensor term =
              distillation_loss(loss, output.logits, teacher_logits, config.distill->temperature);
          sum.terms.emplace_back("distill", term);
          sum.loss = sum.loss + config.distill->weight * term;
          return sum;
        },
        std::move(teacher));
  };
  kind.check = [loss](const NamedSettings& settings, const SettingLocations& locations,
                      const Model& model, const DatasetInfo& data) {
    if (data.classes.empty()) {
      fail_usage(
          "{}: loss '{}' compares logits with classes, but the targets of '{}' are real numbers; "
          "choose squared",
          locations.at({"loss", "data"}), loss, data.name);
    }
    check_aux_losses(settings.as<ClassificationObjectiveConfig>().aux_losses, locations, model);
    check_members(loss, locations, model);
    if (settings.as<ClassificationObjectiveConfig>().distill && loss == "softmax_twice") {
      fail_usage("{}: loss 'softmax_twice' has no distillation; choose softmax",
                 locations.at({"distill", "loss"}));
    }
  };
  return kind;
}

struct SquaredObjectiveConfig {
  std::map<std::string, double> aux_losses;  ///< weight of each, see aux_loss_names()
};
void describe(auto& f, SquaredObjectiveConfig& c) {
  f("aux_losses", c.aux_losses, "weights of auxiliary losses, as those of softmax; empty: none",
    at_least(0.0));
}
ConfigProblem config_problem(const SquaredObjectiveConfig& config) {
  return aux_losses_problem(config.aux_losses);
}

/// The mean over images and targets of (output - target)^2, plus auxiliary losses. Outputs are the
/// network's logits.
ObjectiveKind squared_objective() {
  ObjectiveKind kind = {.settings = NamedSettings("squared", SquaredObjectiveConfig{}),
                        .description = "mean squared error, for real-valued targets"};
  kind.make = [](const NamedSettings& settings, const Model& model, const std::string& precision) {
    const auto weights = aux_loss_weights(settings.as<SquaredObjectiveConfig>().aux_losses, model);
    return std::make_unique<OfOutput>(
        precision, [weights](const ModelOutput& output, const Batch& batch, const at::Tensor&) {
          LossTerms sum{(output.logits.to(at::kFloat) - batch.targets).square().mean()};
          sum.terms = {{"mse", sum.loss}};
          return with_aux_losses(std::move(sum), weights, output);
        });
  };
  kind.check = [](const NamedSettings& settings, const SettingLocations& locations,
                  const Model& model, const DatasetInfo& data) {
    if (data.targets.empty()) {
      fail_usage(
          "{}: loss 'squared' is for real-valued targets, but those of '{}' are classes; choose "
          "softmax",
          locations.at({"loss", "data"}), data.name);
    }
    check_is_one("squared", locations, model, "; choose a model without members");
    check_aux_losses(settings.as<SquaredObjectiveConfig>().aux_losses, locations, model);
  };
  return kind;
}

struct HingeConfig {
  bool linear = false;
};
void describe(auto& f, HingeConfig& c) {
  f("linear", c.linear,
    "gradient of 1 - margin on every image, also where the loss is 0 (pruning paper, section 4.2)");
}

/// The mean over images of max(0, 1 - margin), where the margin is the logit of the class less the
/// largest of the others.
LossTerms hinge_terms(bool has_linear_gradient, const at::Tensor& logits_BC,
                      const at::Tensor& labels) {
  const at::Tensor label_B1 = labels.unsqueeze(1);
  const at::Tensor own_B = logits_BC.gather(1, label_B1).squeeze(1);
  const at::Tensor other_B =
      logits_BC.scatter(1, label_B1, -std::numeric_limits<float>::infinity()).amax(1);
  const at::Tensor linear = (1 - (own_B - other_B));
  const at::Tensor hinge = linear.clamp_min(0).mean();
  if (!has_linear_gradient) return {hinge, {{"hinge", hinge}}};
  const at::Tensor sum = linear.mean();
  return {sum + (hinge - sum).detach(), {{"hinge", hinge}}};
}

ObjectiveKind hinge_objective() {
  ObjectiveKind kind = {
      .settings = NamedSettings("hinge", HingeConfig{}),
      .description =
          "mean of max(0, 1 - margin), where the margin is the logit of the class minus the "
          "largest other one"};
  kind.make = [](const NamedSettings& settings, const Model&, const std::string& precision) {
    const bool linear = settings.as<HingeConfig>().linear;
    return std::make_unique<OfOutput>(
        precision, [linear](const auto& output, const Batch& batch, const auto&) {
          return hinge_terms(linear, output.logits.to(at::kFloat), batch.labels);
        });
  };
  kind.check = [](const NamedSettings&, const SettingLocations& locations, const Model& model,
                  const DatasetInfo& data) {
    if (data.classes.size() < 2) {
      fail_usage("{}: loss 'hinge' is for two classes or more, '{}' has {}",
                 locations.at({"loss", "data"}), data.name, data.classes.size());
    }
    check_is_one("hinge", locations, model, "");
  };
  return kind;
}

}  // namespace

Registry<ClassificationLoss>& classification_losses() {
  static Registry<ClassificationLoss> registry = [] {
    const ClassificationLoss softmax = {.description = "cross-entropy of softmax(logits)",
                                        .row_losses = softmax_of_rows<false>,
                                        .log_probabilities = log_softmax_probabilities,
                                        .ensemble_losses = softmax_of_mean,
                                        .counterpart = "ensemble_softmax"};
    ClassificationLoss twice = softmax;
    twice.description =
        "cross-entropy of softmax(softmax(logits)), as in the clusters paper's released code";
    twice.row_losses = softmax_of_rows<true>;
    const ClassificationLoss sigmoid = {
        .description = "binary cross-entropy of sigmoid(logit), summed over the classes",
        .row_losses = sigmoid_of_rows,
        .log_probabilities = at::log_sigmoid,
        .ensemble_losses = sigmoid_of_mean,
        .counterpart = "ensemble_sigmoid"};
    return Registry<ClassificationLoss>(
        "loss", {{"softmax", softmax},
                 {"softmax_twice", twice},
                 {"sigmoid", sigmoid},
                 {"ensemble_softmax", ensemble_loss_of(softmax, "softmax")},
                 {"ensemble_sigmoid", ensemble_loss_of(sigmoid, "sigmoid")}});
  }();
  return registry;
}

at::Tensor training_losses(const std::string& name, const at::Tensor& logits,
                           const Targets& targets) {
  const int64_t members = members_of(name, logits, targets);
  Targets row_targets = targets;
  for (at::Tensor* tensor : {&row_targets.labels, &row_targets.soft_labels}) {
    if (members > 1 && tensor->defined()) *tensor = tensor->repeat_interleave(members, 0);
  }
  return classification_losses().at(name).row_losses(logits.to(at::kFloat), row_targets);
}

at::Tensor evaluation_losses(const std::string& name, const at::Tensor& logits,
                             const Targets& targets) {
  const int64_t members = members_of(name, logits, targets);
  if (members == 1) return training_losses(name, logits, targets);
  return classification_losses().at(name).ensemble_losses(by_image(logits, members),
                                                          dense_targets(targets, logits.size(1)));
}

at::Tensor log_mean_probabilities(const std::string& name, const at::Tensor& logits,
                                  int64_t members) {
  const ClassificationLoss& loss = classification_losses().at(name);
  return log_mean_exp(loss.log_probabilities(by_image(logits, members)));
}

ConfigProblem config_problem(const ClassificationObjectiveConfig& config) {
  return aux_losses_problem(config.aux_losses);
}

LossTerms classification_terms(const std::string& loss, const ClassificationObjectiveConfig& config,
                               const ModelOutput& output, const at::Tensor& labels,
                               const at::Tensor& soft_labels) {
  const Targets targets{labels, soft_labels, config.label_smoothing};
  LossTerms sum{training_losses(loss, output.logits, targets).mean()};
  sum.terms = {{"accuracy", accuracy_of(output.logits, labels)}, {"cross_entropy", sum.loss}};
  return with_aux_losses(std::move(sum), config.aux_losses, output);
}

Registry<ObjectiveKind>& objectives() {
  static Registry<ObjectiveKind> registry = [] {
    Registry<ObjectiveKind> made("loss",
                                 {{"squared", squared_objective()}, {"hinge", hinge_objective()}});
    for (const std::string& loss : classification_losses().names()) {
      made.add(loss, classification_objective(loss));
    }
    return made;
  }();
  return registry;
}

std::vector<NamedSettings> objective_choices() {
  return choices_of(objectives(), "softmax");
}

}  // namespace moesaic
