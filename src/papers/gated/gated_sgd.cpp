// SPDX-License-Identifier: Apache-2.0
// The phase kind "gated_sgd": blocks of steps of stochastic gradient descent on fresh batches
// ("Learning in Gated Neural Networks", sections 3 and 4).
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "built_in.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/ops/gated_losses.h"
#include "moesaic/train/gradient_config.h"
#include "moesaic/train/optimizer.h"
#include "phase.h"

namespace moesaic {
namespace {

struct L4Config {
  L4Weights weights;
};
template <class Fields>
void describe(Fields& f, L4Config& c) {
  f("lambda", c.weights.lambda, "weight of the regressors' norms", at_least(0.0));
  f("mu", c.weights.mu, "weight of the fourth moments", at_least(0.0));
  f("delta", c.weights.delta, "weight decay", at_least(0.0));
}

struct LogConfig {
  double radius = 1.0;
};
template <class Fields>
void describe(Fields& f, LogConfig& c) {
  f("radius", c.radius, "R: longer gates are shortened to it after every step; 0: none",
    at_least(0.0));
}

struct SquaredConfig {};
template <class Fields>
void describe(Fields&, SquaredConfig&) {}

constexpr const char *kL4 = "l4", *kLog = "l_log", *kSquared = "squared";

std::vector<Choice> loss_choices() {
  return {Choice(kL4, L4Config{}), Choice(kLog, LogConfig{}), Choice(kSquared, SquaredConfig{})};
}

struct StepConfig {
  double lr = 0.005;
};
template <class Fields>
void describe(Fields& f, StepConfig& c) {
  f("lr", c.lr, "peak learning rate", above(0.0));
}

struct GatedSgdConfig {
  int64_t batch_size = 1024, block = 16;
  StepConfig optimizer;
  ScheduleConfig schedule = {.name = "constant"};
  Choice loss = loss_choices().front();
};
template <class Fields>
void describe(Fields& f, GatedSgdConfig& c) {
  f("batch_size", c.batch_size, "samples a step", between(1, 1048576));
  f("optimizer", c.optimizer, "plain gradient descent");
  f("schedule", c.schedule, "learning rate over the phase");
  f("block", c.block, "steps that are made at once", between(1, 4096));
  f.choice("loss", c.loss, loss_choices(),
           "what is minimised: l4 for the regressors, l_log for the gates, squared for both");
}

Moves moves_of(const GatedSgdConfig& config) {
  return {config.loss.name() != kLog, config.loss.name() != kL4};
}

class GatedSgd final : public GatedPhase {
 public:
  GatedSgd(const PhasePlan& plan, PhaseContext context)
      : GatedPhase(plan, std::move(context), moves_of(settings_of<GatedSgdConfig>(plan.config))),
        config_(settings_of<GatedSgdConfig>(plan_.config)) {
    if (config_.loss.name() == kL4) {
      const nn::GatedMixtureOptions& options = nn::find_gated_mixture(*context_.model)->options();
      transforms_ = output_transforms(options.link, options.noise);
    }
  }

  StepReport step() override {
    const torch::NoGradGuard no_grad;
    const int64_t steps = std::min(config_.block, plan_.steps - made_);
    const Samples samples = samples_.batches(made_, steps);
    MixtureParameters parameters(*context_.model);
    parameters.a_kd.requires_grad_(moves_.regressors);
    parameters.w_kd.requires_grad_(moves_.gates);
    StepReport report;
    double sum = 0.0;
    for (int64_t i = 0; i < steps; ++i) {
      report.lr = learning_rate(config_.schedule, config_.optimizer.lr, made_ + i, plan_.steps,
                                plan_.steps_per_epoch);
      const Samples batch = {samples.x_Nd.narrow(0, i * plan_.batch, plan_.batch),
                             samples.y_N.narrow(0, i * plan_.batch, plan_.batch)};
      const double loss = descend(parameters, batch, *report.lr);
      if (!std::isfinite(loss)) throw Diverged("loss is not finite");
      sum += loss;
    }
    parameters.write();
    made_ += steps;
    report.metrics["loss"] = sum / static_cast<double>(steps);
    report.images = steps * plan_.batch;
    report.steps = steps;
    return report;
  }

  std::string remedy() const override { return lower("optimizer.lr", config_.optimizer.lr); }

 private:
  at::Tensor loss_of(const MixtureParameters& at, const Samples& batch) const {
    const at::AutoGradMode differentiable(true);
    const auto& [x, y] = batch;
    if (const L4Config* l4 = config_.loss.find<L4Config>()) {
      return l4_loss(x, y, at.a_kd, *transforms_, l4->weights);
    }
    if (config_.loss.find<LogConfig>() != nullptr) {
      return log_loss(x, y, at.a_kd, at.w_kd, at.options().link, at.options().noise);
    }
    return squared_loss(x, y, at.a_kd, at.w_kd, at.options().link);
  }

  double descend(MixtureParameters& at, const Samples& batch, double lr) const {
    const at::Tensor loss = loss_of(at, batch);
    std::vector<at::Tensor> moved;
    if (moves_.regressors) moved.push_back(at.a_kd);
    if (moves_.gates) moved.push_back(at.w_kd);
    const std::vector<at::Tensor> slopes = torch::autograd::grad({loss}, moved);
    for (size_t i = 0; i < moved.size(); ++i) moved[i].sub_(slopes[i], lr);
    const LogConfig* const log = config_.loss.find<LogConfig>();
    if (log != nullptr && moves_.gates) project_rows(at.w_kd, log->radius);
    return loss.item<double>();
  }

  const GatedSgdConfig& config_;  ///< Part of plan_.
  std::optional<OutputTransforms> transforms_;
};

/// Warns of a batch with fewer samples than the symmetric tensor of fourth moments has numbers.
void check_moments(const GatedSgdConfig& config, const PhasePlaces& places, int64_t width) {
  const auto d = static_cast<double>(width);
  const double numbers = d * (d + 1) * (d + 2) * (d + 3) / 24.0;
  if (static_cast<double>(config.batch_size) >= numbers) return;
  log_warning(
      "{}: phase '{}': a batch of {} is small for L4: fourth moments of {} dimensions are {:.0f} "
      "numbers; the gradient is mostly noise",
      places.of({"batch_size"}), places.phase().name, config.batch_size, width, numbers);
}

void plan_sgd(PhasePlan& plan, const PhasePlaces& places, const Model& model, const Dataset& data) {
  const auto& config = settings_of<GatedSgdConfig>(plan.config);
  plan_gated(plan, places, model, data, config.batch_size, moves_of(config));
  const nn::GatedMixtureOptions& options = nn::find_gated_mixture(model)->options();
  if (config.loss.name() != kL4) return;
  at_place(places.of_model("link", "loss"),
           [&] { return output_transforms(options.link, options.noise); });
  check_moments(config, places, options.width);
}

}  // namespace

PhaseKind gated_sgd_kind() {
  const GatedSgdConfig defaults;
  return kind_of_phase<GatedSgd>(
      "gated_sgd", defaults,
      "stochastic gradient descent of a gated mixture on fresh batches by L4, L_log or the squared "
      "loss",
      plan_sgd);
}

}  // namespace moesaic
