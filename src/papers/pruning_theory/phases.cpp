// SPDX-License-Identifier: Apache-2.0
// The phase kind "pattern_sgd": chunks of steps of Algorithm 1 of the pruning paper, by its
// formulas.
#include <torch/torch.h>

#include "parts.h"
#include "pattern_sgd.h"

namespace moesaic {
namespace {

struct PatternSgdConfig {
  int64_t batch_size = 128, chunk_size = 16;
  double expert_lr = 0.02, router_lr = 0.01;
  bool stop_at_zero_loss = true;
};
void describe(auto& f, PatternSgdConfig& c) {
  f("batch_size", c.batch_size, "number of new examples per step", between(1, 65536));
  f("expert_lr", c.expert_lr, "learning rate of the neurons (eta_e)", between(0.0, 1e6));
  f("router_lr", c.router_lr, "learning rate of the routers (eta_r)", between(0.0, 1e6));
  f("stop_at_zero_loss", c.stop_at_zero_loss,
    "early end at the first batch whose hinge loss is 0; false: none", renamed_from("until_zero"));
  f("chunk_size", c.chunk_size, "number of steps computed together", between(1, 4096),
    renamed_from("block"));
}

class PatternSgd final : public OnlinePhase {
 public:
  PatternSgd(const PhasePlan& plan, PhaseContext context)
      : OnlinePhase(plan, std::move(context), "is_zero"),
        config_(settings_of<PatternSgdConfig>(plan_.config)),
        layer_(*find_layer_of<nn::PatternExperts>(*context_.model)) {}

  bool is_done() const override { return steps_done_ >= plan_.steps || is_at_end(); }

  StepReport make_step() override {
    nn::PatternExpertsImpl& experts = *layer_->experts->as<nn::PatternExperts>();
    PatternWeights weights{router_rows(layer_), host_copy(experts.w), host_copy(experts.sign)};
    const int64_t block = steps_of(config_.chunk_size);
    const DatasetInputs drawn = inputs(steps_done_ * plan_.batch_size, block * plan_.batch_size);
    const at::Tensor tokens = drawn.values_NCHW.flatten(1).to(at::kInt);
    const at::Tensor y = (1 - 2 * drawn.labels_N).to(at::kFloat);
    const PatternSgdOptions options{layer_->options().rule.l, config_.expert_lr, config_.router_lr};
    StepReport report{.steps = 0};
    double hinge = 0.0, accuracy = 0.0;
    while (report.steps < block && !is_at_end()) {
      const int64_t first = report.steps * plan_.batch_size;
      const PatternStep made = pattern_sgd_step(
          weights,
          {tokens.narrow(0, first, plan_.batch_size), y.narrow(0, first, plan_.batch_size)},
          options);
      has_reached_end_ = made.hinge == 0.0;
      hinge += made.hinge;
      accuracy += made.accuracy;
      ++report.steps;
    }
    check_finite(hinge, {weights.router_Kd, weights.neurons_Kdm});
    set_router_rows(layer_, weights.router_Kd);
    experts.w.copy_(weights.neurons_Kdm);
    const auto steps = static_cast<double>(report.steps);
    report.metrics = {{"loss", hinge / steps}, {"accuracy", 100.0 * accuracy / steps}};
    report.images = report.steps * plan_.batch_size;
    return report;
  }

  std::string divergence_hint() const override {
    return fmt::format("lower phases.{0}.expert_lr ({1} now) or phases.{0}.router_lr ({2} now)",
                       plan_.config.name, config_.expert_lr, config_.router_lr);
  }

 private:
  /// Whether the hinge loss of the last batch was 0, and that ends the phase.
  bool is_at_end() const { return config_.stop_at_zero_loss && has_reached_end_; }

  const PatternSgdConfig& config_;  ///< Part of plan_.
  nn::MoELayer layer_;
};

void plan_patterns(PhasePlan& plan, const SettingLocations& locations, const Model& model,
                   const Dataset& data) {
  const PhaseConfig& phase = plan.config;
  const auto layer = find_layer_of<nn::PatternExperts>(model);
  if (!layer) {
    fail_needs(locations, locations.find_in_model("name", "kind"),
               "a model with pattern experts (moesaic list models)");
  }
  if (data.has_images() || !data.is_endless() || data.info().classes.size() != 2) {
    fail_needs(locations, locations.find({"data"}),
               "an endless stream of patterns of two classes, which '" + phase.data + "' is not");
  }
  const Directions known = data.directions();
  const auto patterns = known.find("pattern");
  const int64_t width = (*layer)->options().width;
  if (patterns == known.end() || patterns->second.size(0) != width) {
    fail_usage("{}: phase '{}': the model has {} patterns, '{}' has {}",
               locations.find_in_model("num_patterns", "data"), phase.name, width, phase.data,
               patterns == known.end() ? 0 : patterns->second.size(0));
  }
  check_all_trained(
      plan, locations, model,
      "it trains routers and neurons; set a learning rate to 0 instead of 'trainable' "
      "and 'frozen'");
  plan_steps(plan, locations, data, settings_of<PatternSgdConfig>(phase).batch_size);
}

}  // namespace

constinit AddPhaseKind add_pattern_sgd =
    add_phase_kind<PatternSgd, PatternSgdConfig, plan_patterns>;

}  // namespace moesaic
