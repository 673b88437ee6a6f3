// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <limits>

#include "moesaic/base/error.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/train/places.h"
#include "objectives.h"

namespace moesaic {
namespace {

struct HingeConfig {
  bool linear = false;
};
template <class Fields>
void describe(Fields& f, HingeConfig& c) {
  f("linear", c.linear,
    "the gradient is that of 1 - margin on every image, also where the loss is 0 (pruning paper, "
    "section 4.2)");
}

/// The mean over images of max(0, 1 - margin), where the margin is the logit of the class less the
/// largest of the others.
class HingeObjective final : public Objective {
 public:
  HingeObjective(HingeConfig config, std::string precision)
      : config_(config), precision_(std::move(precision)) {}

  LossTerms operator()(Model& model, const Batch& batch,
                       const at::Generator& random) const override {
    const at::Tensor logits_BC = [&] {
      const Autocast autocast(precision_, batch.images.device());
      return model.forward(batch.images, random).logits.to(at::kFloat);
    }();
    const at::Tensor label_B1 = batch.labels.unsqueeze(1);
    const at::Tensor own_B = logits_BC.gather(1, label_B1).squeeze(1);
    const at::Tensor other_B =
        logits_BC.scatter(1, label_B1, -std::numeric_limits<float>::infinity()).amax(1);
    const at::Tensor linear = (1 - (own_B - other_B));
    const at::Tensor hinge = linear.clamp_min(0).mean();
    if (!config_.linear) return {hinge, {{"hinge", hinge}}};
    const at::Tensor sum = linear.mean();
    return {sum + (hinge - sum).detach(), {{"hinge", hinge}}};
  }

 private:
  HingeConfig config_;
  std::string precision_;
};

}  // namespace

ObjectiveKind hinge_objective() {
  ObjectiveKind kind;
  kind.settings = Choice("hinge", HingeConfig{});
  kind.meaning =
      "mean of max(0, 1 - margin), the logit of the class less the largest of the others";
  kind.make = [](const Choice& settings, const Model&, const std::string& precision) {
    return std::make_unique<HingeObjective>(settings.as<HingeConfig>(), precision);
  };
  kind.check = [](const Choice&, const PhasePlaces& places, const Model& model,
                  const DatasetInfo& data) {
    const std::string& phase = places.phase().name;
    if (data.classes.size() < 2) {
      fail_usage("{}: phase '{}': loss 'hinge' is for two classes or more, '{}' has {}",
                 places.of({"loss", "data"}), phase, data.name, data.classes.size());
    }
    if (model.members() > 1) {
      fail_usage("{}: phase '{}': loss 'hinge' is for one network, the model is an ensemble of {}",
                 places.of_model(model.setting_paths().members, "loss"), phase, model.members());
    }
  };
  return kind;
}

}  // namespace moesaic
