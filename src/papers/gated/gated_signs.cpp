// SPDX-License-Identifier: Apache-2.0
// The phase kind "gated_signs": one step that makes regressors of what minimises L4.
#include <torch/torch.h>

#include "built_in.h"
#include "moesaic/base/error.h"
#include "moesaic/ops/gated_em.h"
#include "phase.h"

namespace moesaic {
namespace {

struct GatedSignsConfig {
  int64_t samples = 10240;
};
template <class Fields>
void describe(Fields& f, GatedSignsConfig& c) {
  f("samples", c.samples, "whose likelihood chooses", between(1, 1048576));
}

constexpr Moves kMoves{.regressors = true, .gates = false};

class GatedSigns final : public GatedPhase {
 public:
  GatedSigns(const PhasePlan& plan, PhaseContext context)
      : GatedPhase(plan, std::move(context), kMoves) {}

  StepReport step() override {
    const torch::NoGradGuard no_grad;
    MixtureParameters parameters(*context_.model);
    const Samples samples = samples_.batches(made_, 1);
    const auto& options = parameters.options();
    parameters.a_kd.copy_(resolve_regressors(
        samples.x_Nd.to(at::kDouble), samples.y_N.to(at::kDouble), parameters.a_kd.to(at::kDouble),
        parameters.w_kd.to(at::kDouble), options.link, options.noise));
    parameters.write();
    ++made_;
    return {.metrics = {}, .images = plan_.batch};
  }
};

}  // namespace

PhaseKind gated_signs_kind() {
  return kind_of_phase<GatedSigns>(
      "gated_signs", GatedSignsConfig{},
      "one step that makes regressors of a gated mixture of what minimises L4, by their signs",
      [](PhasePlan& plan, const PhasePlaces& places, const Model& model, const Dataset& data) {
        plan_gated(plan, places, model, data, settings_of<GatedSignsConfig>(plan.config).samples,
                   kMoves);
        if (plan.steps > 1) {
          fail_usage("{}: phase '{}': a phase of kind 'gated_signs' has one step, found {}",
                     places.of({"steps", "epochs"}), plan.config.name, plan.steps);
        }
      });
}

}  // namespace moesaic
