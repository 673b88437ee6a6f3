// SPDX-License-Identifier: Apache-2.0
// The phase kind "router_ascent": gradient ascent of the router on the correlation of F_1 with the
// targets, phase II of Algorithm 1 of the latent paper.
#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>

#include "built_in.h"
#include "moesaic/base/error.h"
#include "phase.h"

namespace moesaic {
namespace {

struct RouterAscentConfig {
  double lr = 1.0;
  int64_t batch_size = 4000;
};
template <class Fields>
void describe(Fields& f, RouterAscentConfig& c) {
  f("lr", c.lr, "eta", above(0.0));
  f("batch_size", c.batch_size, "n, fresh samples a step; 10 d to 20 d are needed for a signal",
    between(1, 1048576));
}

class RouterAscent final : public LatentPhase {
 public:
  RouterAscent(const PhasePlan& plan, PhaseContext context)
      : LatentPhase(plan, std::move(context), nn::kTopOne),
        config_(settings_of<RouterAscentConfig>(plan_.config)) {}

  StepReport step() override {
    const torch::NoGradGuard no_grad;
    const int64_t first = made_ * plan_.batch;
    const at::Tensor router_Kd = router_rows(layer_);
    const RoutedBlock block = routed(samples(first, plan_.batch), first, router_Kd);
    const at::Tensor& x_Sd = block.rows.x_Sd;
    // d/dtheta_m of pi_sel f_sel is pi_sel f_sel (1[sel = m] - pi_m) x.
    const at::Tensor pull_SK = -block.logits_SK.softmax(1);
    const at::Tensor weight_S = at::zeros_like(block.rows.y_S);
    const auto* const offset = block.rows.offset.const_data_ptr<int64_t>();
    for (int64_t k = 0; k < pull_SK.size(1); ++k) {
      if (offset[k] == offset[k + 1]) continue;
      const at::Tensor rows = block.rows.sample.slice(0, offset[k], offset[k + 1]).to(at::kLong);
      const at::Tensor f =
          experts().outputs_of(x_Sd.index_select(0, rows).to(context_.model->device()), k);
      const at::Tensor gate = block.rows.gate.slice(0, offset[k], offset[k + 1]);
      weight_S.index_copy_(0, rows, f.cpu() * gate * block.rows.y_S.index_select(0, rows));
      pull_SK.select(1, k).index_add_(0, rows, at::ones_like(gate));
    }
    const double correlation = weight_S.mean(at::kDouble).item<double>();
    const at::Tensor gradient_Kd = (pull_SK * weight_S.unsqueeze(1)).t().mm(x_Sd);
    const at::Tensor change_Kd = gradient_Kd * (config_.lr / static_cast<double>(plan_.batch));
    const double shift = check_shift(x_Sd, change_Kd);
    set_router_rows(layer_, router_Kd + change_Kd);
    ++made_;
    StepReport report{.metrics = {{"correlation", correlation}, {"shift", shift}},
                      .images = plan_.batch};
    report.lr = config_.lr;
    return report;
  }

  std::string remedy() const override { return lower("lr", config_.lr); }

 private:
  /// Returns the root mean square by which a step moves the samples' logits. The softmax keeps the
  /// ascent bounded whatever the rate, so that nothing grows that one could watch; but it is 0 or 1
  /// to float32 where logits are 24 ln 2 apart, and has no gradient there. A step as long as that
  /// ends the ascent where the noise of one batch points. Throws Diverged for it, and where a
  /// number is not finite.
  static double check_shift(const at::Tensor& x_Sd, const at::Tensor& change_Kd) {
    constexpr double kLongest = 24 * 0.6931471805599453;
    const double square = x_Sd.mm(change_Kd.t()).square().mean(at::kDouble).item<double>();
    const double shift = std::sqrt(square);
    if (!std::isfinite(shift)) throw Diverged("a step of the router is not finite");
    if (shift > kLongest) {
      throw Diverged(fmt::format(
          "a step moves logits by {:.3g} in the root mean square; beyond {:.1f} the softmax of "
          "float32 has no gradient",
          shift, kLongest));
    }
    return shift;
  }

  const RouterAscentConfig& config_;  ///< Part of plan_.
};

}  // namespace

PhaseKind router_ascent_kind() {
  return kind_of_phase<RouterAscent>(
      "router_ascent", RouterAscentConfig{},
      "gradient ascent of the router of two-layer experts (latent paper, phase II)",
      [](PhasePlan& plan, const PhasePlaces& places, const Model& model, const Dataset& data) {
        plan_latent(plan, places, model, data,
                    settings_of<RouterAscentConfig>(plan.config).batch_size);
      });
}

}  // namespace moesaic
