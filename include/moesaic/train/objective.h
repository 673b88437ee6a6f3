// SPDX-License-Identifier: Apache-2.0
// Objectives, which gradient phases minimise, by name, each with its own settings, and the losses
// of logits and labels that those of classes have in training and in evaluation.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "moesaic/base/registry.h"
#include "moesaic/data/loader.h"
#include "moesaic/models/model.h"
#include "moesaic/train/phase_config.h"

namespace moesaic {

/// A loss and its terms: float32 scalars on the network's device.
struct LossTerms {
  at::Tensor loss;
  /// Named values for the report: unweighted terms of the loss, and metrics that cost nothing.
  std::vector<std::pair<std::string, at::Tensor>> terms = {};
};

/// What a gradient phase minimises.
class Objective {
 public:
  virtual ~Objective() = default;
  /// Runs the network on the batch, with random numbers drawn from `random`, and returns the loss,
  /// ready for backward().
  virtual LossTerms operator()(Model& model, const Batch& batch,
                               const at::Generator& random) const = 0;
};

/// A registry entry of an objective.
struct ObjectiveKind {
  NamedSettings settings;   ///< Name and default settings.
  std::string description;  ///< Description for lists of objectives.
  /// Makes the objective for a network whose matrix products run in `precision` (see Autocast).
  std::function<std::unique_ptr<Objective>(const NamedSettings& settings, const Model& model,
                                           const std::string& precision)>
      make;
  /// Throws Error (usage) with the location of the setting if it does not fit the network or the
  /// data.
  std::function<void(const NamedSettings& settings, const SettingLocations& locations,
                     const Model& model, const DatasetInfo& data)>
      check;
  bool takes_soft_labels = false;  ///< Whether mixup's Batch::soft_labels replace the labels.
};

/// Returns softmax, sigmoid, softmax_twice, ensemble_softmax, ensemble_sigmoid
/// (classification_losses()) and hinge for classes, and squared for real-valued targets.
Registry<ObjectiveKind>& objectives();

/// Returns the settings of all objectives, "softmax" first.
std::vector<NamedSettings> objective_choices();

/// Targets of rows of logits.
struct Targets {
  at::Tensor labels;       ///< Classes [B] int64.
  at::Tensor soft_labels;  ///< Used in place of labels where defined, [B, classes] float32.
  double smoothing = 0.0;  ///< Label smoothing s: targets are (1 - s) t + s / classes.
};

/// A loss of classes. All tensors are float32.
struct ClassificationLoss {
  std::string description;  ///< Description for lists of objectives.
  /// Returns the loss of each row, [R], for logits_RC and targets of as many rows.
  at::Tensor (*row_losses)(const at::Tensor& logits_RC, const Targets& targets);
  /// Returns log p of each class, along the last dimension.
  at::Tensor (*log_probabilities)(const at::Tensor& logits);
  /// Returns the loss of each image, [B], where p is the mean over the members of an ensemble, for
  /// logits_BMC and targets_BC.
  at::Tensor (*ensemble_losses)(const at::Tensor& logits_BMC, const at::Tensor& targets_BC);
  /// Whether the loss takes one row of logits per image and member of an ensemble.
  bool is_ensemble_loss = false;
  /// Name of the same loss for an ensemble, or for a single network where this one is of ensembles.
  std::string counterpart;
};

/// Returns softmax, sigmoid, softmax_twice, ensemble_softmax and ensemble_sigmoid.
Registry<ClassificationLoss>& classification_losses();

/// Returns the training loss of each row of logits [B members, classes], an image's members in a
/// row, each with the image's targets t:
///
///     softmax:  -sum_c t_c log softmax(logits)_c
///     softmax_twice:  softmax with softmax(logits) in place of logits (clusters paper's released
///                     code), so that two classes cost at least 0.3133
///     sigmoid:  -sum_c t_c log sigmoid(logit_c) + (1 - t_c) log sigmoid(-logit_c)
///
/// The result is [B members] float32. Throws Error (usage) for another name, and for several rows
/// per image where the loss is not of ensembles.
at::Tensor training_losses(const std::string& name, const at::Tensor& logits,
                           const Targets& targets);

/// Returns the loss of each image in evaluation, [B] float32. For an ensemble_* loss the mean
/// probabilities of the members replace softmax(logits), or sigmoid(logit) and sigmoid(-logit).
at::Tensor evaluation_losses(const std::string& name, const at::Tensor& logits,
                             const Targets& targets);

/// Returns the log of the mean over `members` of softmax(logits) [B members, classes], or of
/// sigmoid(logits) for a sigmoid loss: [B, classes] float32.
at::Tensor log_mean_probabilities(const std::string& name, const at::Tensor& logits,
                                  int64_t members);

/// Settings of `distill`, see train/distill.h.
struct DistillConfig {
  std::string teacher;
  double temperature = 1.0, weight = 1.0;
};
void describe(auto& f, DistillConfig& c) {
  f("teacher", c.teacher,
    "network whose outputs are learned on the same augmented images, frozen and in evaluation "
    "mode: an earlier phase, a run or a checkpoint",
    required, not_empty);
  f("temperature", c.temperature, "temperature that divides the logits of both networks",
    between(0.01, 1000.0));
  f("weight", c.weight, "weight of the distillation loss, which is added to the loss of the labels",
    at_least(0.0));
}

/// Settings of the objectives of classification.
struct ClassificationObjectiveConfig {
  double label_smoothing = 0.0;
  std::map<std::string, double> aux_losses;  ///< Weight of each, see aux_loss_names().
  std::optional<DistillConfig> distill = {};
};
void describe(auto& f, ClassificationObjectiveConfig& c) {
  f("label_smoothing", c.label_smoothing, "fraction of the target spread over all classes; 0: none",
    at_least(0.0), below(1.0), known_as({"smoothing"}));
  f("aux_losses", c.aux_losses,
    "weights of auxiliary losses: gshard, importance, load, router_z, switch_balance, "
    "switch_balance_logit; empty: none",
    at_least(0.0),
    known_as({"aux_loss", "balance_loss", "load_balancing", "router_aux_loss_coef", "z_loss"}));
  f("distill", c.distill,
    "distillation from another network, such as the unpruned one; null: none");
}
ConfigProblem config_problem(const ClassificationObjectiveConfig& config);

/// Returns loss = cross entropy + sum of weight * auxiliary loss, where the cross entropy is the
/// mean of training_losses(loss) over the rows of logits [B members, classes] and `config` gives
/// the weights. Terms: "accuracy" in % over all rows, "cross_entropy", and each auxiliary loss.
LossTerms classification_terms(const std::string& loss, const ClassificationObjectiveConfig& config,
                               const ModelOutput& output, const at::Tensor& labels,
                               const at::Tensor& soft_labels = {});

/// Returns gshard, importance, load, router_z, switch_balance, and switch_balance_logit, which is
/// switch_balance with the logit as the proxy; see ops/losses.h.
std::vector<std::string> aux_loss_names();

/// Returns what is wrong with the names of a phase's `aux_losses`.
ConfigProblem aux_losses_problem(const std::map<std::string, double>& phase);

/// Returns the weights of a phase, completed by the model's weights for losses that it omits.
std::map<std::string, double> aux_loss_weights(const std::map<std::string, double>& phase,
                                               const Model& model);

/// Throws Error (usage), with the location of the setting, for a weight above 0 of a loss that
/// would be 0 at every step of the phase. A load loss that the model's own settings weigh is only
/// warned of, since they say that there is none without noise, and they are idle without an MoE
/// layer. Warns of a trained router that gets no gradient, since its gates are 1 and it has no
/// auxiliary loss.
void check_aux_losses(const std::map<std::string, double>& phase, const SettingLocations& locations,
                      const Model& model);

/// Returns the sum over the MoE layers (as in V-MoE) of the mean over groups of an auxiliary loss,
/// a float32 scalar, 0 without a layer. Expert choice is balanced: there all losses except router_z
/// are 0, as is the load loss where no gaussian noise was drawn. Rerouted layers count the kept
/// experts only; for an ensemble the loss is the mean of those of the members, each over its own
/// experts. Throws Error (usage) for an unknown name.
at::Tensor aux_loss(const std::string& name, const ModelOutput& output);

}  // namespace moesaic
