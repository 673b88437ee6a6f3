// SPDX-License-Identifier: Apache-2.0
// The phase kinds of gated mixtures ("Learning in Gated Neural Networks", sections 3 and 4):
// "gated_sgd", chunks of steps of stochastic gradient descent on fresh batches; "gated_em",
// expectation-maximisation on a fixed set of samples; "gated_signs", one step that makes regressors
// of what minimises L4.
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <cmath>

#include "losses.h"
#include "moesaic/base/log.h"
#include "moesaic/data/format.h"
#include "moesaic/data/source.h"
#include "moesaic/train/gradient_phase.h"
#include "parts.h"

namespace moesaic {
namespace {

struct Samples {
  at::Tensor x_Nd, y_N;  ///< float32, on the CPU.
};

/// Which of a mixture's parameters a phase moves.
struct Moves {
  bool regressors = false, gates = false;

  /// Returns the network's names of them.
  std::vector<std::string> names(const GatedMoE& model) const {
    std::vector<std::string> names;
    if (regressors) names.emplace_back("mixture.regressors");
    if (gates) names.emplace_back("mixture.gates");
    if (gates && model.gates_bias.defined()) names.emplace_back("mixture.gates_bias");
    return names;
  }

  /// Returns those that the phase's settings `trainable` and `frozen` leave.
  Moves within(const PhaseConfig& phase, const GatedMoE& model) const {
    const std::vector<std::string> trained = trained_parameters(model, phase);
    const auto any_trained = [&](const Moves& one) {
      const std::vector<std::string> names = one.names(model);
      return std::find_first_of(names.begin(), names.end(), trained.begin(), trained.end()) !=
             names.end();
    };
    return {any_trained({regressors, false}), any_trained({false, gates})};
  }
};

/// Warns where the network's mixture differs from the one that makes the data.
void check_mixture(const SettingLocations& locations, const GatedMoEConfig& mixture) {
  constexpr double kSameNoise = 1e-6;  // A model's cannot be 0.
  const std::string& data = locations.phase().data;
  if (!has_spec(data)) return;
  const DatasetSource source(data);
  const auto* settings = source.base().format.find<GeneratedSettings<GatedMixtureConfig>>();
  if (settings == nullptr) return;
  const auto warn = [&](const char* setting, const auto& own, const auto& of_data) {
    log_warning("{}: phase '{}': the model's {} is {}, that of '{}' is {}",
                locations.find_in_model(setting, "data"), locations.phase().name, setting, own,
                data, of_data);
  };
  const GatedMixtureConfig& truth = *settings->data;
  if (truth.num_experts != mixture.num_experts)
    warn("num_experts", mixture.num_experts, truth.num_experts);
  if (truth.link != mixture.link) warn("link", mixture.link, truth.link);
  if (std::abs(truth.noise - mixture.noise) > kSameNoise) warn("noise", mixture.noise, truth.noise);
  if (!truth.gate_biases.empty() && !mixture.has_gate_biases) {
    warn("has_gate_biases", false, "true");
  }
}

/// Checks that regressors and gates may be independent, which L4 assumes.
void check_independent(const SettingLocations& locations, const GatedMoEConfig& mixture) {
  if (2 * mixture.num_experts - 1 <= mixture.width) return;
  fail_usage(
      "{}: phase '{}': {} experts have {} regressors and gates, which do not fit into {} "
      "dimensions (assumption 3 of L4); choose at most {} experts",
      locations.find_in_model("num_experts", "loss"), locations.phase().name, mixture.num_experts,
      2 * mixture.num_experts - 1, mixture.width, (mixture.width + 1) / 2);
}

/// Completes the plan of a phase of `batch` samples a step that moves these parameters. Throws
/// Error (usage) unless the network has a gated mixture, the data are inputs of its width with one
/// real-valued target, and `trainable` and `frozen` leave something to move. Warns where the data's
/// mixture is another one.
void plan_gated(PhasePlan& plan, const SettingLocations& locations, const Model& model,
                const Dataset& data, int64_t batch, const Moves& moves) {
  const PhaseConfig& phase = plan.config;
  const auto* const network = dynamic_cast<const GatedMoE*>(&model);
  if (network == nullptr) {
    fail_needs(locations, locations.find_in_model("name", "kind"),
               "a model with a gated mixture (moesaic list models)");
  }
  const DatasetInfo& info = data.info();
  const int64_t width = network->settings().width;
  if (data.has_images() || info.targets.size() != 1 || data.image_size() != width) {
    fail_needs(
        locations, locations.find({"data"}),
        fmt::format("inputs of {} numbers with one real-valued target, which '{}' does not have",
                    width, phase.data));
  }
  check_mixture(locations, network->settings());
  if (batch < width) {
    log_warning("{}: phase '{}': {} samples do not determine regressors of {} dimensions",
                locations.find({"batch_size", "num_samples"}), phase.name, batch, width);
  }
  if (moves.within(phase, *network).names(*network).empty()) {
    fail_usage(
        "{}: phase '{}': 'trainable' and 'frozen' leave none of the parameters that the phase "
        "trains, {}",
        locations.find({"frozen", "trainable", "kind"}), phase.name,
        fmt::join(moves.names(*network), " and "));
  }
  plan_steps(plan, locations, data, batch);
}

/// A mixture's parameters, copied to the CPU to work on.
struct Parameters {
  at::Tensor a_kd, w_kd;  ///< The gates with their biases last, if they have any.
};

/// A phase of a gated mixture: which parameters it moves, and its samples.
class GatedPhase : public OnlinePhase {
 protected:
  GatedPhase(const PhasePlan& plan, PhaseContext context, const Moves& moves)
      : OnlinePhase(plan, std::move(context)),
        model_(dynamic_cast<GatedMoE&>(*context_.model)),
        moves_(moves.within(plan_.config, model_)) {}

  Parameters parameters() const {
    return {model_.regressors.detach().to(at::kCPU).clone(),
            model_.full_gates().detach().to(at::kCPU).clone()};
  }
  /// Copies both to the network. Throws DivergedError before that if a number is not finite.
  void write(const Parameters& parameters) const {
    for (const at::Tensor& tensor : {parameters.a_kd, parameters.w_kd}) {
      if (!all_finite(tensor)) throw DivergedError("a parameter is not finite");
    }
    const torch::NoGradGuard no_grad;
    model_.regressors.copy_(parameters.a_kd);
    const int64_t d = model_.settings().width;
    model_.gates.copy_(parameters.w_kd.narrow(1, 0, d));
    if (model_.gates_bias.defined()) model_.gates_bias.copy_(parameters.w_kd.select(1, d));
  }

  /// Returns the samples of `count` batches from number `first` on.
  Samples batches(int64_t first, int64_t count) const {
    const DatasetInputs drawn = inputs(first * plan_.batch_size, count * plan_.batch_size);
    return {drawn.values_NCHW.flatten(1), drawn.targets_NK.flatten()};
  }

  GatedMoE& model_;  ///< That of context_.
  Moves moves_;      ///< Those that the settings leave.
};

/// Shortens rows to the norm `max_norm`; 0 leaves all.
void project_rows(const at::Tensor& rows, double max_norm) {
  if (max_norm == 0.0) return;
  const at::Tensor norms = rows.norm(2, {1}, true);
  rows.mul_(at::where(norms > max_norm, max_norm / norms, at::ones_like(norms)));
}

struct L4Config {
  L4Weights weights;
};
void describe(auto& f, L4Config& c) {
  f("lambda", c.weights.lambda, "l4: weight of the regressors' norms in the loss", at_least(0.0));
  f("mu", c.weights.mu, "l4: weight of the fourth moments in the loss", at_least(0.0));
  f("delta", c.weights.delta, "l4: weight of half the squared norm of the regressors in the loss",
    at_least(0.0));
}

struct LogConfig {
  double max_gate_norm = 1.0;
};
void describe(auto& f, LogConfig& c) {
  f("max_gate_norm", c.max_gate_norm,
    "largest norm of a gate (R), enforced after every step; 0: none", at_least(0.0),
    renamed_from("radius"));
}

struct SquaredConfig {};
void describe(auto&, SquaredConfig&) {}

constexpr const char *kL4 = "l4", *kLog = "l_log", *kSquared = "squared";

std::vector<NamedSettings> loss_choices() {
  return {NamedSettings(kL4, L4Config{}), NamedSettings(kLog, LogConfig{}),
          NamedSettings(kSquared, SquaredConfig{})};
}

struct StepConfig {
  double lr = 0.005;
};
void describe(auto& f, StepConfig& c) {
  f("lr", c.lr, "peak learning rate", above(0.0));
}

struct GatedSgdConfig {
  int64_t batch_size = 1024, chunk_size = 16;
  StepConfig optimizer;
  ScheduleConfig schedule = {.name = "constant"};
  NamedSettings loss = loss_choices().front();
};
void describe(auto& f, GatedSgdConfig& c) {
  f("batch_size", c.batch_size, "number of samples per step", between(1, 1048576));
  f("optimizer", c.optimizer, "settings of plain gradient descent");
  f("schedule", c.schedule, "learning rate schedule of the phase");
  f("chunk_size", c.chunk_size, "number of steps computed together", between(1, 4096),
    renamed_from("block"));
  f.choice("loss", c.loss, loss_choices(),
           "loss to minimise: l4 for the regressors, l_log for the gates, squared for both");
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
      transforms_ = output_transforms(model_.link(), model_.settings().noise);
    }
  }

  StepReport make_step() override {
    const int64_t steps = steps_of(config_.chunk_size);
    const Samples samples = batches(steps_done_, steps);
    Parameters at = parameters();
    at.a_kd.requires_grad_(moves_.regressors);
    at.w_kd.requires_grad_(moves_.gates);
    StepReport report;
    double sum = 0.0;
    for (int64_t i = 0; i < steps; ++i) {
      report.lr = learning_rate(config_.schedule, config_.optimizer.lr, steps_done_ + i,
                                plan_.steps, plan_.steps_per_epoch);
      const Samples batch = {samples.x_Nd.narrow(0, i * plan_.batch_size, plan_.batch_size),
                             samples.y_N.narrow(0, i * plan_.batch_size, plan_.batch_size)};
      const double loss = descend(at, batch, *report.lr);
      if (!std::isfinite(loss)) throw DivergedError("loss is not finite");
      sum += loss;
    }
    write(at);
    report.metrics["loss"] = sum / static_cast<double>(steps);
    report.images = steps * plan_.batch_size;
    report.steps = steps;
    return report;
  }

  std::string divergence_hint() const override {
    return lower_hint("optimizer.lr", config_.optimizer.lr);
  }

 private:
  at::Tensor loss_of(const Parameters& at, const Samples& batch) const {
    const at::AutoGradMode differentiable(true);
    const auto& [x, y] = batch;
    if (const L4Config* l4 = config_.loss.find<L4Config>()) {
      return l4_loss(x, y, at.a_kd, *transforms_, l4->weights);
    }
    if (config_.loss.find<LogConfig>() != nullptr) {
      return log_loss(x, y, at.a_kd, at.w_kd, model_.link(), model_.settings().noise);
    }
    return squared_loss(x, y, at.a_kd, at.w_kd, model_.link());
  }

  double descend(Parameters& at, const Samples& batch, double lr) const {
    const at::Tensor loss = loss_of(at, batch);
    std::vector<at::Tensor> moved;
    if (moves_.regressors) moved.push_back(at.a_kd);
    if (moves_.gates) moved.push_back(at.w_kd);
    const std::vector<at::Tensor> slopes = torch::autograd::grad({loss}, moved);
    for (size_t i = 0; i < moved.size(); ++i) moved[i].sub_(slopes[i], lr);
    const LogConfig* const log = config_.loss.find<LogConfig>();
    if (log != nullptr && moves_.gates) {
      project_rows(at.w_kd.narrow(1, 0, model_.settings().width), log->max_gate_norm);
    }
    return loss.item<double>();
  }

  const GatedSgdConfig& config_;  ///< Part of plan_.
  std::optional<OutputTransforms> transforms_;
};

/// Warns of a batch with fewer samples than the symmetric tensor of fourth moments has numbers.
void check_moments(const GatedSgdConfig& config, const SettingLocations& locations, int64_t width) {
  const auto d = static_cast<double>(width);
  const double numbers = d * (d + 1) * (d + 2) * (d + 3) / 24.0;
  if (static_cast<double>(config.batch_size) >= numbers) return;
  log_warning(
      "{}: phase '{}': a batch of {} is small for L4: fourth moments of {} dimensions are {:.0f} "
      "numbers; the gradient is mostly noise",
      locations.find({"batch_size"}), locations.phase().name, config.batch_size, width, numbers);
}

void plan_sgd(PhasePlan& plan, const SettingLocations& locations, const Model& model,
              const Dataset& data) {
  const auto& config = settings_of<GatedSgdConfig>(plan.config);
  plan_gated(plan, locations, model, data, config.batch_size, moves_of(config));
  if (config.loss.name() != kL4) return;
  const auto& network = dynamic_cast<const GatedMoE&>(model);
  check_independent(locations, network.settings());
  at_location(locations.find_in_model("link", "loss"),
              [&] { return output_transforms(network.link(), network.settings().noise); });
  check_moments(config, locations, network.settings().width);
}

struct GatedEmConfig {
  int64_t num_samples = 10240;
  GatedEmOptions options;
};
void describe(auto& f, GatedEmConfig& c) {
  f("num_samples", c.num_samples, "number of samples used for all steps", between(1, 1048576),
    renamed_from("samples"));
  f("gate_steps", c.options.gate_steps,
    "number of gradient steps on the gates after each on the regressors", between(0, 1000));
  f("gate_lr", c.options.lr, "learning rate of the steps on the gates", above(0.0));
}

constexpr Moves kBoth{.regressors = true, .gates = true};

class GatedEm final : public GatedPhase {
 public:
  GatedEm(const PhasePlan& plan, PhaseContext context)
      : GatedPhase(plan, std::move(context), kBoth),
        config_(settings_of<GatedEmConfig>(plan_.config)) {
    const Samples samples = batches(0, 1);
    x_ = samples.x_Nd.to(at::kDouble);
    y_ = samples.y_N.to(at::kDouble);
  }

  StepReport make_step() override {
    Parameters at = parameters();
    const GatedEmStep next = gated_em_step(x_, y_, at.a_kd.to(at::kDouble), at.w_kd.to(at::kDouble),
                                           model_.link(), model_.settings().noise, config_.options);
    if (moves_.regressors) at.a_kd.copy_(next.a_kd);
    if (moves_.gates) at.w_kd.copy_(next.w_kd);
    write(at);
    return {.metrics = {{"loss", next.loss}}, .images = plan_.batch_size};
  }

 private:
  const GatedEmConfig& config_;  ///< Part of plan_.
  at::Tensor x_, y_;
};

void plan_em(PhasePlan& plan, const SettingLocations& locations, const Model& model,
             const Dataset& data) {
  const int64_t samples = settings_of<GatedEmConfig>(plan.config).num_samples;
  plan_gated(plan, locations, model, data, samples, kBoth);
}

struct GatedSignsConfig {
  int64_t num_samples = 10240;
};
void describe(auto& f, GatedSignsConfig& c) {
  f("num_samples", c.num_samples, "number of samples whose likelihood decides the signs",
    between(1, 1048576), renamed_from("samples"));
}

constexpr Moves kMoves{.regressors = true, .gates = false};

class GatedSigns final : public GatedPhase {
 public:
  GatedSigns(const PhasePlan& plan, PhaseContext context)
      : GatedPhase(plan, std::move(context), kMoves) {}

  StepReport make_step() override {
    Parameters at = parameters();
    const Samples samples = batches(steps_done_, 1);
    at.a_kd.copy_(resolve_regressors(samples.x_Nd.to(at::kDouble), samples.y_N.to(at::kDouble),
                                     at.a_kd.to(at::kDouble), at.w_kd.to(at::kDouble),
                                     model_.link(), model_.settings().noise));
    write(at);
    return {.metrics = {}, .images = plan_.batch_size};
  }
};

void plan_signs(PhasePlan& plan, const SettingLocations& locations, const Model& model,
                const Dataset& data) {
  const int64_t samples = settings_of<GatedSignsConfig>(plan.config).num_samples;
  plan_gated(plan, locations, model, data, samples, kMoves);
  if (plan.steps > 1) {
    fail_usage("{}: phase '{}': a phase of kind 'gated_signs' has one step, found {}",
               locations.find({"steps", "epochs"}), plan.config.name, plan.steps);
  }
}

}  // namespace

constinit AddPhaseKind add_gated_sgd = add_phase_kind<GatedSgd, GatedSgdConfig, plan_sgd>;
constinit AddPhaseKind add_gated_em = add_phase_kind<GatedEm, GatedEmConfig, plan_em>;
constinit AddPhaseKind add_gated_signs = add_phase_kind<GatedSigns, GatedSignsConfig, plan_signs>;

}  // namespace moesaic
