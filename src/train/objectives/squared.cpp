// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include "moesaic/ops/autocast.h"
#include "moesaic/train/aux_losses.h"
#include "moesaic/train/places.h"
#include "objectives.h"

namespace moesaic {
namespace {

struct SquaredObjectiveConfig {
  std::map<std::string, double> aux_losses;  ///< weight of each, see aux_loss_names()
};
template <class Fields>
void describe(Fields& f, SquaredObjectiveConfig& c) {
  f("aux_losses", c.aux_losses, "weights of auxiliary losses, as those of softmax", at_least(0.0));
}
ConfigProblem config_problem(const SquaredObjectiveConfig& config) {
  return aux_losses_problem(config.aux_losses);
}

/// The mean over images and targets of (output - target)^2, plus auxiliary losses. Outputs are the
/// network's logits.
class SquaredObjective final : public Objective {
 public:
  SquaredObjective(std::map<std::string, double> aux_losses, std::string precision)
      : aux_losses_(std::move(aux_losses)), precision_(std::move(precision)) {}

  LossTerms operator()(Model& model, const Batch& batch,
                       const at::Generator& random) const override {
    const ModelOutput output = [&] {
      const Autocast autocast(precision_, batch.images.device());
      return model.forward(batch.images, random);
    }();
    LossTerms sum{(output.logits.to(at::kFloat) - batch.targets).square().mean()};
    sum.terms = {{"mse", sum.loss}};
    for (const auto& [name, weight] : aux_losses_) {
      const at::Tensor term = aux_loss(name, output);
      sum.terms.emplace_back(name, term);
      sum.loss = sum.loss + weight * term;
    }
    return sum;
  }

 private:
  std::map<std::string, double> aux_losses_;
  std::string precision_;
};

}  // namespace

ObjectiveKind squared_objective() {
  ObjectiveKind kind;
  kind.settings = Choice("squared", SquaredObjectiveConfig{});
  kind.meaning = "mean squared error, for real-valued targets";
  kind.make = [](const Choice& settings, const Model& model, const std::string& precision) {
    return std::make_unique<SquaredObjective>(
        aux_loss_weights(settings.as<SquaredObjectiveConfig>().aux_losses, model), precision);
  };
  kind.check = [](const Choice& settings, const PhasePlaces& places, const Model& model,
                  const DatasetInfo& data) {
    if (data.targets.empty()) {
      fail_usage(
          "{}: phase '{}': loss 'squared' is for real-valued targets, but those of '{}' are "
          "classes; choose softmax",
          places.of({"loss", "data"}), places.phase().name, data.name);
    }
    if (model.members() > 1) {
      fail_usage(
          "{}: phase '{}': loss 'squared' is for one network, the model is an ensemble of {}; "
          "choose a model without members",
          places.of_model(model.setting_paths().members, "loss"), places.phase().name,
          model.members());
    }
    check_aux_losses(settings.as<SquaredObjectiveConfig>().aux_losses, places, model);
  };
  return kind;
}

}  // namespace moesaic
