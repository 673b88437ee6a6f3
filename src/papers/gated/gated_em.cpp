// SPDX-License-Identifier: Apache-2.0
// The phase kind "gated_em": expectation-maximisation of a gated mixture on a fixed set of samples.
#include <torch/torch.h>

#include "built_in.h"
#include "moesaic/ops/gated_em.h"
#include "phase.h"

namespace moesaic {
namespace {

struct GatedEmConfig {
  int64_t samples = 10240;
  GatedEmOptions options;
};
template <class Fields>
void describe(Fields& f, GatedEmConfig& c) {
  f("samples", c.samples, "on which all steps are made", between(1, 1048576));
  f("gate_steps", c.options.gate_steps, "gradient steps on the gates after each on the regressors",
    between(0, 1000));
  f("gate_lr", c.options.lr, "learning rate of those", above(0.0));
}

constexpr Moves kBoth{.regressors = true, .gates = true};

class GatedEm final : public GatedPhase {
 public:
  GatedEm(const PhasePlan& plan, PhaseContext context)
      : GatedPhase(plan, std::move(context), kBoth),
        config_(settings_of<GatedEmConfig>(plan_.config)) {
    const Samples samples = samples_.batches(0, 1);
    x_ = samples.x_Nd.to(at::kDouble);
    y_ = samples.y_N.to(at::kDouble);
  }

  StepReport step() override {
    const torch::NoGradGuard no_grad;
    MixtureParameters parameters(*context_.model);
    const GatedEmStep next =
        gated_em_step(x_, y_, parameters.a_kd.to(at::kDouble), parameters.w_kd.to(at::kDouble),
                      parameters.options().link, parameters.options().noise, config_.options);
    if (moves_.regressors) parameters.a_kd.copy_(next.a_kd);
    if (moves_.gates) parameters.w_kd.copy_(next.w_kd);
    parameters.write();
    ++made_;
    return {.metrics = {{"loss", next.loss}}, .images = plan_.batch};
  }

 private:
  const GatedEmConfig& config_;  ///< Part of plan_.
  at::Tensor x_, y_;
};

}  // namespace

PhaseKind gated_em_kind() {
  return kind_of_phase<GatedEm>(
      "gated_em", GatedEmConfig{},
      "expectation-maximisation of a gated mixture on a fixed set of samples",
      [](PhasePlan& plan, const PhasePlaces& places, const Model& model, const Dataset& data) {
        plan_gated(plan, places, model, data, settings_of<GatedEmConfig>(plan.config).samples,
                   kBoth);
      });
}

}  // namespace moesaic
