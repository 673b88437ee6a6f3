// SPDX-License-Identifier: Apache-2.0
// The phases I to III of Algorithm 1 of the latent paper. The kind "spherical_sgd": blocks of
// online steps of the first layers on the correlation loss (I and III). The kind "router_ascent":
// gradient ascent of the router on the correlation of F_1 with the targets (II).
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "moesaic/ops/route.h"
#include "parts.h"

namespace moesaic {
namespace {

/// Returns the rows of samples whose experts have the largest logit, one of several by the sample's
/// random number; gates are softmaxes over all experts.
Routing route_to_largest(const at::Tensor& logits_SK, const std::vector<float>& random) {
  const int64_t samples = logits_SK.size(0), experts = logits_SK.size(1);
  const at::Tensor chosen_SK = at::zeros_like(logits_SK), gate_S = at::empty({samples});
  const auto* logits = logits_SK.const_data_ptr<float>();
  auto *chosen = chosen_SK.mutable_data_ptr<float>(), *gate = gate_S.mutable_data_ptr<float>();
  for (int64_t s = 0; s < samples; ++s, logits += experts, chosen += experts) {
    const float largest = *std::max_element(logits, logits + experts);
    const auto ties = std::count(logits, logits + experts, largest);
    const float number = random[static_cast<size_t>(s)] * static_cast<float>(ties);
    int64_t left = std::min<int64_t>(static_cast<int64_t>(number), ties - 1);
    float sum = 0.0f;
    for (int64_t k = 0; k < experts; ++k) {
      if (logits[k] == largest && left-- == 0) chosen[k] = 1.0f;
      sum += std::exp(logits[k] - largest);
    }
    gate[s] = 1.0f / sum;
  }
  Routing routing = route(chosen_SK, {.k = 1, .gate = Gate::one});
  routing.gate = gate_S.index_select(0, routing.token);
  return routing;
}

constexpr const char *kAsItIs = "as_it_is", *kIdeal = "ideal";

struct SphericalSgdConfig {
  double lr = 1.0, stop_alignment = 0.0;
  std::string routing = nn::kTopOne, router = kAsItIs;
  bool restart = false;
  int64_t num_experts = 0, num_neurons = 0;
  int64_t chunk_size = 4096;
};
void describe(auto& f, SphericalSgdConfig& c) {
  f("lr", c.lr,
    "learning rate (eta), divided by the number of neurons per expert in the step of a neuron",
    above(0.0));
  f("routing", c.routing,
    "routing rule of the phase: top1, as in phase I, or adaptive, as in phase III (see the "
    "model's)",
    one_of({nn::kTopOne, nn::kEveryAboveZero}));
  f("restart", c.restart,
    "new random first layers, and second layers of random signs, before the first step (phase "
    "III)");
  f("num_experts", c.num_experts,
    "number of experts (M) after a restart, which take the router's rows of the former experts in "
    "turn; 0: as before",
    between(0, 4096));
  f("num_neurons", c.num_neurons,
    "number of neurons per expert (J) after a restart, with new biases; 0: as before",
    between(0, 1048576));
  f("router", c.router,
    "initial router of the phase: as_it_is: unchanged; ideal: experts get, in turn, the mean "
    "direction of a cluster minus the mean of the other clusters",
    one_of({kAsItIs, kIdeal}));
  f("stop_alignment", c.stop_alignment,
    "mean over clusters and experts of the largest alignment of a neuron with the cluster's task, "
    "at which the phase ends; 0: never",
    between(0.0, 1.0), renamed_from("until_local"));
  f("chunk_size", c.chunk_size, "number of steps, of one sample each, computed together",
    between(1, 1048576), renamed_from("block"));
}

class SphericalSgd final : public LatentPhase {
 public:
  SphericalSgd(const PhasePlan& plan, PhaseContext context)
      : LatentPhase(plan, std::move(context), settings_of<SphericalSgdConfig>(plan.config).routing,
                    "reached"),
        config_(settings_of<SphericalSgdConfig>(plan_.config)) {}

  StepReport make_step() override {
    const int64_t steps = steps_of(config_.chunk_size);
    nn::ShallowExpertsImpl& own = experts();
    const nn::ShallowExperts resized = resized_experts();
    const nn::ShallowExpertsImpl& from = resized ? *resized : own;
    const double step = config_.lr / static_cast<double>(from.w.size(1));
    const at::Tensor router_Kd = starting_router(from.num_experts());
    SphericalNeurons neurons = starting_neurons(from);
    const RoutedBlock block = routed(samples(steps_done_, steps), steps_done_, router_Kd);
    StepReport report{.lr = config_.lr, .images = steps, .steps = steps};
    report.metrics["turn"] = check_turn(block.rows, neurons, step);
    spherical_sgd(neurons, block.rows, step);
    if (!all_finite(neurons.w_Nd)) throw DivergedError("a weight is not finite");
    // Only now does the network change: what failed before has left it as it was.
    if (resized) network().replace_experts(resized, router_Kd);
    own.w.copy_(neurons.w_Nd.view_as(own.w));
    own.a.copy_(neurons.a_N.view_as(own.a));
    if (starts_ideal()) set_router_rows(layer_, router_Kd);
    add_alignments(neurons.w_Nd.view(own.w.sizes()), report);
    return report;
  }

  std::string divergence_hint() const override { return lower_hint("lr", config_.lr); }

 private:
  LatentMoE& network() const { return dynamic_cast<LatentMoE&>(*context_.model); }

  bool starts_ideal() const { return steps_done_ == 0 && config_.router == kIdeal; }

  /// Returns new experts where a restart changes how many they or their neurons are, else null.
  nn::ShallowExperts resized_experts() const {
    const int64_t experts_now = experts().num_experts(), neurons_now = experts().w.size(1);
    const int64_t m = config_.num_experts > 0 ? config_.num_experts : experts_now;
    const int64_t j = config_.num_neurons > 0 ? config_.num_neurons : neurons_now;
    if (steps_done_ > 0 || (m == experts_now && j == neurons_now)) return nullptr;
    return network().draw_experts(m, j, generator("latent.resize"));
  }

  /// Returns a copy of the neurons that the next step starts from.
  SphericalNeurons starting_neurons(const nn::ShallowExpertsImpl& from) const {
    const bool restarts = steps_done_ == 0 && config_.restart;
    const auto [w, a] = restarts ? from.draw_neurons(generator("latent.restart"))
                                 : nn::ShallowExpertsImpl::Neurons{from.w, from.a};
    return {host_copy(w).flatten(0, 1), host_copy(a).flatten(), host_copy(from.b).flatten(),
            from.hermite.defined() ? host_copy(from.hermite).flatten(0, 1) : at::Tensor()};
  }

  /// Returns the router of so many experts that the next step starts from.
  at::Tensor starting_router(int64_t num_experts) const {
    if (starts_ideal()) return ideal_router(num_experts);
    const at::Tensor rows_Kd = router_rows(layer_);
    return rows_Kd.index_select(0, at::arange(num_experts).remainder(rows_Kd.size(0)));
  }

  at::Tensor ideal_router(int64_t num_experts) const {
    const at::Tensor mean = context_.data->directions().at("mean");
    const at::Tensor v_Cd = mean / mean.norm(2, {1}, true);
    const auto clusters = static_cast<double>(v_Cd.size(0));
    const at::Tensor others = (v_Cd.sum(0, true) - v_Cd) / (clusters - 1.0);
    const at::Tensor kept = torch::tensor(layer_->kept(), torch::kLong);
    const at::Tensor ids = num_experts == kept.size(0) ? kept : at::arange(num_experts);
    return (v_Cd - others).index_select(0, ids.remainder(v_Cd.size(0)));
  }

  /// Returns the root mean square tangent of the angle by which a sample turns a neuron whose
  /// derivative is 1, its mean square for polynomials. Throws DivergedError above 1: weights of
  /// norm 1 stay finite with any step, but then each sample takes the place of all before it.
  static double check_turn(const RoutedSamples& rows, const SphericalNeurons& neurons,
                           double step) {
    const at::Tensor norm_S = rows.x_Sd.norm(2, {1}) * rows.y_S;
    const at::Tensor tangent_A = norm_S.index_select(0, rows.sample.to(at::kLong)) * rows.gate;
    at::Tensor slope_N = neurons.a_N.to(at::kDouble).square();
    if (neurons.hermite_NK.defined()) {
      // The mean square of sum_i c_i He_i' / sqrt(i!) is sum_i i c_i^2.
      const at::Tensor degree = at::arange(neurons.hermite_NK.size(1), at::kDouble);
      slope_N *= (neurons.hermite_NK.to(at::kDouble).square() * degree).sum(1);
    }
    const at::Tensor slope_M = slope_N.view({rows.offset.size(0) - 1, -1}).mean(1);
    const at::Tensor slope_A = slope_M.repeat_interleave(rows.offset.diff());
    const at::Tensor square_A = tangent_A.to(at::kDouble).square() * slope_A;
    const double square = square_A.numel() == 0 ? 0.0 : square_A.mean().item<double>();
    const double turn = step * std::sqrt(square);
    if (!(turn <= 1.0)) {
      throw DivergedError(
          fmt::format("a step turns a neuron by more than 45 degrees (the tangent is "
                      "{:.3g} in the root mean square)",
                      turn));
    }
    return turn;
  }

  /// Adds how far the neurons have come, where the data say what they should find: the mean over
  /// experts and directions of the largest magnitude of a neuron's product.
  void add_alignments(const at::Tensor& w_KJd, StepReport& report) {
    for (const auto& [name, direction] : context_.data->directions()) {
      if (name != "local" && name != "global") continue;
      const at::Tensor products = w_KJd.flatten(0, 1).mm(direction.to(w_KJd.options()).t()).abs();
      report.metrics[name] =
          products.view({w_KJd.size(0), w_KJd.size(1), -1}).amax(1).mean().item<double>();
    }
    const auto local = report.metrics.find("local");
    has_reached_end_ = config_.stop_alignment > 0.0 && local != report.metrics.end() &&
                       local->second >= config_.stop_alignment;
  }

  const SphericalSgdConfig& config_;  ///< Part of plan_.
};

void plan_spherical(PhasePlan& plan, const SettingLocations& locations, const Model& model,
                    const Dataset& data) {
  plan_latent(plan, locations, model, data, 1);
  const auto& config = settings_of<SphericalSgdConfig>(plan.config);
  const auto known = data.directions();
  if (config.router == kIdeal && !known.contains("mean")) {
    fail_usage(
        "{}: phase '{}': router 'ideal' needs the means of the clusters, which '{}' does not have; "
        "choose as_it_is",
        locations.find({"router"}), plan.config.name, plan.config.data);
  }
  if (config.stop_alignment > 0.0 && !known.contains("local")) {
    fail_usage(
        "{}: phase '{}': stop_alignment needs the directions of the clusters' tasks, which '{}' "
        "does not have; choose 0",
        locations.find({"stop_alignment"}), plan.config.name, plan.config.data);
  }
  if (config.num_experts == 0 && config.num_neurons == 0) return;
  const std::string place = locations.find({"num_experts", "num_neurons"});
  if (!config.restart) {
    fail_usage(
        "{}: phase '{}': only a restart changes num_experts and num_neurons; choose restart=true",
        place, plan.config.name);
  }
  if (dynamic_cast<const LatentMoE*>(&model) == nullptr ||
      !model.moe_blocks()[0].layer->removed().empty()) {
    fail_needs(locations, place, "a latent-moe without pruned experts, to change their number");
  }
}

struct RouterAscentConfig {
  double lr = 1.0;
  int64_t batch_size = 4000;
};
void describe(auto& f, RouterAscentConfig& c) {
  f("lr", c.lr,
    "learning rate (eta); for equal steps with other numbers of random neurons, proportional to "
    "the square root of that number",
    above(0.0));
  f("batch_size", c.batch_size,
    "number of new samples per step (n); a signal needs 10 to 20 times the input dimension in each "
    "of 300 steps, thousands of times in a single step",
    between(1, 1048576));
}

class RouterAscent final : public LatentPhase {
 public:
  RouterAscent(const PhasePlan& plan, PhaseContext context)
      : LatentPhase(plan, std::move(context), nn::kTopOne),
        config_(settings_of<RouterAscentConfig>(plan_.config)) {}

  StepReport make_step() override {
    const int64_t first = steps_done_ * plan_.batch_size;
    const at::Tensor router_Kd = router_rows(layer_);
    const RoutedBlock block = routed(samples(first, plan_.batch_size), first, router_Kd);
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
    const at::Tensor change_Kd = gradient_Kd * (config_.lr / static_cast<double>(plan_.batch_size));
    const double shift = check_shift(x_Sd, change_Kd);
    set_router_rows(layer_, router_Kd + change_Kd);
    return {.metrics = {{"correlation", correlation}, {"shift", shift}},
            .lr = config_.lr,
            .images = plan_.batch_size};
  }

  std::string divergence_hint() const override { return lower_hint("lr", config_.lr); }

 private:
  /// Returns the root mean square by which a step moves the samples' logits. The softmax keeps the
  /// ascent bounded whatever the rate, so that nothing grows that one could watch; but it is 0 or 1
  /// to float32 where logits are 24 ln 2 apart, and has no gradient there. A step as long as that
  /// ends the ascent where the noise of one batch points. Throws DivergedError for it, and where a
  /// number is not finite.
  static double check_shift(const at::Tensor& x_Sd, const at::Tensor& change_Kd) {
    constexpr double kLongest = 24 * 0.6931471805599453;
    const double square = x_Sd.mm(change_Kd.t()).square().mean(at::kDouble).item<double>();
    const double shift = std::sqrt(square);
    if (!std::isfinite(shift)) throw DivergedError("a step of the router is not finite");
    if (shift > kLongest) {
      throw DivergedError(fmt::format(
          "a step moves logits by {:.3g} in the root mean square; beyond {:.1f} the softmax of "
          "float32 has no gradient",
          shift, kLongest));
    }
    return shift;
  }

  const RouterAscentConfig& config_;  ///< Part of plan_.
};

void plan_ascent(PhasePlan& plan, const SettingLocations& locations, const Model& model,
                 const Dataset& data) {
  const int64_t samples = settings_of<RouterAscentConfig>(plan.config).batch_size;
  plan_latent(plan, locations, model, data, samples);
}

}  // namespace

RoutedBlock route_samples(const at::Tensor& x_Sd, const at::Tensor& y_S,
                          const at::Tensor& router_Kd, const std::string& routing,
                          const SampleRng& ties, int64_t first) {
  const int64_t samples = x_Sd.size(0), experts = router_Kd.size(0);
  RoutedBlock block;
  block.rows.x_Sd = x_Sd;
  block.rows.y_S = y_S;
  const bool zero = router_Kd.eq(0).all().item<bool>();
  block.logits_SK = zero ? at::zeros({samples, experts}) : x_Sd.mm(router_Kd.t());
  Routing routed;
  if (routing == nn::kTopOne) {
    std::vector<float> random(static_cast<size_t>(samples));
    ties.uniforms(first, samples, 0, random.data());
    routed = route_to_largest(block.logits_SK, random);
  } else {
    routed = route(block.logits_SK, {.kind = RoutingKind::threshold});
  }
  const auto rows = routed.offsets[experts].item<int64_t>();
  block.rows.offset = routed.offsets.to(at::kLong);
  block.rows.sample = routed.token.narrow(0, 0, rows);
  block.rows.gate = routed.gate.narrow(0, 0, rows);
  return block;
}

void plan_latent(PhasePlan& plan, const SettingLocations& locations, const Model& model,
                 const Dataset& data, int64_t samples) {
  const PhaseConfig& phase = plan.config;
  if (!find_layer_of<nn::ShallowExperts>(model)) {
    fail_needs(locations, locations.find_in_model("name", "kind"),
               "a model of one layer of two-layer experts (moesaic list models)");
  }
  if (data.has_images() || data.info().targets.size() != 1) {
    fail_needs(locations, locations.find({"data"}),
               "inputs with one real-valued target, which '" + phase.data + "' does not have");
  }
  check_all_trained(
      plan, locations, model,
      fmt::format(
          "the kind '{}' determines the trained parameters; leave 'trainable' and 'frozen' out",
          phase.kind.name()));
  plan_steps(plan, locations, data, samples);
}

constinit AddPhaseKind add_spherical_sgd =
    add_phase_kind<SphericalSgd, SphericalSgdConfig, plan_spherical>;
constinit AddPhaseKind add_router_ascent =
    add_phase_kind<RouterAscent, RouterAscentConfig, plan_ascent>;

}  // namespace moesaic
