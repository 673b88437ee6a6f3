// SPDX-License-Identifier: Apache-2.0
// The phase kind "patch_sgd": blocks of steps of Algorithms 1 and 2 of the pMoE paper, by their
// formulas.
#include "patch_sgd.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"
#include "moesaic/nn/patch_mixture.h"
#include "moesaic/ops/patch_sgd.h"
#include "patch_samples.h"

namespace moesaic {
namespace {

constexpr const char *kLogistic = "logistic", *kLinear = "linear";

struct PatchSgdConfig {
  int64_t samples = 0, batch_size = 20, block = 64;
  std::string loss = kLogistic;
  double lr = 0.2;
};
template <class Fields>
void describe(Fields& f, PatchSgdConfig& c) {
  f("loss", c.loss,
    "logistic (eqs. 2, 10), with more than two classes their cross-entropy (eq. 24); or linear, of "
    "routers that are trained apart (eq. 6), in pairs of classes that follow each other",
    one_of({kLogistic, kLinear}), common);
  f("samples", c.samples,
    "N, training samples: the first of the data, of endless data from where the run's seed says; "
    "0: an epoch of it",
    between(0, 1e7));
  f("batch_size", c.batch_size, "samples a step", between(1, 65536));
  f("lr", c.lr, "eta, of all that moves", above(0.0));
  f("block", c.block, "steps that are made at once", between(1, 4096));
}

int64_t samples_of(const PatchSgdConfig& config, const Dataset& data) {
  return config.samples > 0 ? config.samples : data.size();
}

bool gates(const nn::PatchMixtureImpl& mixture) {
  if (mixture.moe.is_empty()) return false;
  const auto& rule = std::get<ExpertChoiceOptions>(mixture.moe->options().rule);
  return rule.gate != ExpertGate::one;
}

/// Which parameters a phase moves, by their names.
struct Moved {
  std::string router, neurons;

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const std::string& name : {router, neurons}) {
      if (!name.empty()) all.push_back(name);
    }
    return all;
  }
};

Moved moved_by(const Model& model, const PhaseConfig& phase) {
  const auto mixture = nn::find_patch_mixture(model);
  const bool linear = settings_of<PatchSgdConfig>(phase).loss == kLinear;
  const std::vector<std::string> trained = trained_parameters(model, phase);
  Moved moved;
  for (const auto& item : model.named_parameters()) {
    if (std::find(trained.begin(), trained.end(), item.key()) == trained.end()) continue;
    const bool neurons = item.value().is_same(mixture->experts->w);
    if (neurons && !linear) moved.neurons = item.key();
    if (!neurons && (linear || gates(*mixture))) moved.router = item.key();
  }
  return moved;
}

/// Throws Error (failure) for a class without a sample among these.
void check_classes(const std::string& phase, const Dataset& data, const at::Tensor& label_N) {
  const DatasetInfo& info = data.info();
  for (size_t c = 0; c < info.classes.size(); ++c) {
    if (label_N.eq(static_cast<int64_t>(c)).any().item<bool>()) continue;
    fail("phase '{}': the first {} of '{}' have none of class '{}'; take more samples", phase,
         count_text(label_N.size(0), "sample"), info.name, info.classes[c]);
  }
}

class PatchSgd final : public Phase {
 public:
  PatchSgd(const PhasePlan& plan, PhaseContext context)
      : plan_(plan),
        config_(settings_of<PatchSgdConfig>(plan_.config)),
        context_(std::move(context)),
        mixture_(nn::find_patch_mixture(*context_.model)),
        moved_(moved_by(*context_.model, plan_.config)),
        count_(samples_of(config_, *context_.data)) {}

  bool done() const override { return made_ >= plan_.steps; }

  StepReport step() override {
    const torch::NoGradGuard no_grad;
    const int64_t steps = std::min(config_.block, plan_.steps - made_);
    const auto batches = patch_batches(count_, plan_.batch, {made_, steps}, context_.seed);
    StepReport report;
    report.metrics = config_.loss == kLinear ? train_routers(batches) : train(batches);
    report.steps = steps;
    report.lr = config_.lr;
    for (const std::vector<int64_t>& batch : batches) {
      report.images += static_cast<int64_t>(batch.size());
    }
    made_ += steps;
    return report;
  }

  std::string remedy() const override {
    return fmt::format("lower phases.{}.lr ({} now)", plan_.config.name, config_.lr);
  }

  PhaseState state() const override { return {{{"made", made_}}, {}}; }
  void load(const PhaseState& state) override {
    const auto made = state.values.find("made");
    const bool valid = made != state.values.end() && made->is_number_integer() && *made >= 0 &&
                       *made <= plan_.steps;
    if (!valid) fail("phase '{}': its state is damaged", plan_.config.name);
    made_ = made->get<int64_t>();
  }

 private:
  using Metrics = std::map<std::string, double>;
  using Batches = std::vector<std::vector<int64_t>>;

  static at::Tensor on_host(const at::Tensor& tensor) {
    return tensor.detach()
        .to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true)
        .contiguous();
  }

  at::Tensor kept_ids() const {
    return torch::tensor(mixture_->moe->kept(), torch::kLong).to(context_.model->device());
  }
  /// Returns the rows of the router of the experts that exist.
  at::Tensor routers() const {
    return on_host(mixture_->moe->router->weight.index_select(0, kept_ids()));
  }
  void write_routers(const at::Tensor& router_Kd) {
    at::Tensor& weight = mixture_->moe->router->weight;
    weight.index_copy_(0, kept_ids(), router_Kd.to(weight.options()));
  }

  PatchSamples read() const {
    const int64_t first = first_patch_sample(*context_.data, context_.run_seed);
    PatchSamples samples =
        read_patch_samples(*context_.data, first, count_, mixture_->options().patch);
    check_classes(plan_.config.name, *context_.data, samples.label_N);
    return samples;
  }

  /// Makes steps of Algorithm 1, step 3, or of Algorithm 2.
  Metrics train(const Batches& batches) {
    const bool routed = !mixture_->moe.is_empty(), gated = gates(*mixture_);
    const int64_t selected =
        routed ? std::get<ExpertChoiceOptions>(mixture_->moe->options().rule).rows : 0;
    if (!examples_) {
      const PatchSamples samples = read();
      const bool fixed = routed && !gated;
      examples_.emplace(samples.x_Nnd, samples.label_N,
                        fixed ? select_patches(samples.x_Nnd, routers(), selected) : at::Tensor());
    }
    PatchWeights weights{gated ? routers() : at::Tensor(), on_host(mixture_->experts->w),
                         on_host(mixture_->experts->a)};
    const PatchSgdOptions options{.selected = selected,
                                  .divisor = mixture_->options().divisor,
                                  .expert_lr = moved_.neurons.empty() ? 0.0 : config_.lr,
                                  .router_lr = moved_.router.empty() ? 0.0 : config_.lr};
    const PatchSgdSteps made = patch_sgd_steps(weights, *examples_, batches, options);
    check_finite(made.loss, weights.neurons_Kdh, weights.router_Kd);
    mixture_->experts->w.copy_(weights.neurons_Kdh);
    if (gated) write_routers(weights.router_Kd);
    return {{"loss", made.loss}, {"accuracy", 100.0 * made.accuracy}};
  }

  /// Makes steps on the linear loss (eq. 6), of each pair of classes with its own samples of a
  /// batch (section M.1).
  Metrics train_routers(const Batches& batches) {
    if (!sums_Nd_.defined()) {
      const PatchSamples samples = read();
      sums_Nd_ = samples.x_Nnd.sum(1);
      label_N_ = samples.label_N;
    }
    at::Tensor router_Kd = routers();
    double loss = 0.0;
    for (const std::vector<int64_t>& batch : batches) {
      const at::Tensor ids = torch::tensor(batch, torch::kLong);
      const at::Tensor sums_Bd = sums_Nd_.index_select(0, ids);
      const at::Tensor label_B = label_N_.index_select(0, ids);
      for (int64_t c = 0; c + 1 < router_Kd.size(0); c += 2) {
        const at::Tensor y_B = label_B.eq(c).to(at::kFloat) - label_B.eq(c + 1).to(at::kFloat);
        const at::Tensor step_d =
            y_B.unsqueeze(0).mm(sums_Bd).squeeze(0) / y_B.abs().sum().clamp_min(1.0);
        loss -= (router_Kd[c] - router_Kd[c + 1]).dot(step_d).item<double>();
        router_Kd[c].add_(step_d, config_.lr);
        router_Kd[c + 1].sub_(step_d, config_.lr);
      }
    }
    check_finite(loss, router_Kd, {});
    write_routers(router_Kd);
    return {{"loss", loss / static_cast<double>(batches.size() * (router_Kd.size(0) / 2))}};
  }

  static void check_finite(double loss, const at::Tensor& first, const at::Tensor& second) {
    const bool finite =
        std::isfinite(loss) && all_finite(first) && (!second.defined() || all_finite(second));
    if (!finite) throw Diverged("the loss or a weight is not finite");
  }

  PhasePlan plan_;
  const PatchSgdConfig& config_;  ///< Part of plan_.
  PhaseContext context_;
  std::shared_ptr<nn::PatchMixtureImpl> mixture_;
  Moved moved_;
  int64_t count_, made_ = 0;
  std::optional<PatchExamples> examples_;  ///< Of the logistic loss.
  at::Tensor sums_Nd_, label_N_;           ///< Of the linear loss.
};

/// Checks what the linear loss needs: a router for each class, in pairs.
void check_linear(const PhasePlaces& places, const nn::PatchMixtureImpl& mixture, int64_t classes) {
  const std::string& name = places.phase().name;
  if (mixture.moe.is_empty()) {
    fail_usage("{}: phase '{}': there is no router to train", places.of_model("router", "loss"),
               name);
  }
  const auto experts = static_cast<int64_t>(mixture.moe->kept().size());
  if (experts != classes || classes % 2 != 0) {
    fail_usage(
        "{}: phase '{}': the linear loss trains routers of pairs of classes, an expert each; there "
        "are {} experts and {} classes",
        places.of_model("experts", "loss"), name, experts, classes);
  }
}

void plan_patch_sgd(PhasePlan& plan, const PhasePlaces& places, const Model& model,
                    const Dataset& data) {
  const PhaseConfig& phase = plan.config;
  const auto& config = settings_of<PatchSgdConfig>(phase);
  const auto mixture = nn::find_patch_mixture(model);
  if (!mixture) {
    fail_usage(
        "{}: phase '{}': a phase of kind '{}' needs a patch-level mixture (moesaic list models)",
        places.of_model("name", "kind"), phase.name, phase.kind.name());
  }
  const auto classes = static_cast<int64_t>(data.info().classes.size());
  if (config.loss == kLinear) check_linear(places, *mixture, classes);
  if (!mixture->moe.is_empty() &&
      std::get<ExpertChoiceOptions>(mixture->moe->options().rule).gate ==
          ExpertGate::softmax_tokens) {
    fail_usage("{}: phase '{}': a phase of kind '{}' has gates of the selected patches, or of one",
               places.of_model("router.gate", "kind"), phase.name, phase.kind.name());
  }
  const int64_t samples = samples_of(config, data);
  if (samples < classes) {
    fail_usage("{}: phase '{}': {} cannot have all {} classes of '{}'", places.of({"samples"}),
               phase.name, count_text(samples, "sample"), classes, phase.data);
  }
  if (!data.endless() && samples > data.size()) {
    fail_usage("{}: phase '{}': '{}' has {}, not {}", places.of({"samples"}), phase.name,
               phase.data, count_text(data.size(), "sample"), samples);
  }
  if (moved_by(model, phase).names().empty()) {
    fail_usage("{}: phase '{}': it would move nothing", places.of({"trains", "frozen", "kind"}),
               phase.name);
  }
  plan.batch = std::min(config.batch_size, samples);
  plan.steps_per_epoch = (samples + plan.batch - 1) / plan.batch;
  plan.steps = phase.steps ? *phase.steps : *phase.epochs * plan.steps_per_epoch;
}

}  // namespace

PhaseKind patch_sgd_kind() {
  return {
      .settings = Choice("patch_sgd", PatchSgdConfig{}),
      .meaning =
          "stochastic gradient descent of a patch-level mixture (pMoE paper, algorithms 1 and 2)",
      .plan = plan_patch_sgd,
      .make = [](const PhasePlan& plan, PhaseContext context) -> std::unique_ptr<Phase> {
        return std::make_unique<PatchSgd>(plan, std::move(context));
      }};
}

}  // namespace moesaic
