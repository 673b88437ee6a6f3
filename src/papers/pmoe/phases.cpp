// SPDX-License-Identifier: Apache-2.0
// The phase kind "patch_sgd": chunks of steps of Algorithms 1 and 2 of the pMoE paper.
#include <torch/torch.h>

#include "moesaic/base/random.h"
#include "moesaic/data/loader.h"
#include "moesaic/data/views.h"
#include "moesaic/nn/patches.h"
#include "parts.h"

namespace moesaic {
namespace {

constexpr const char *kLogistic = "logistic", *kLinear = "linear";

struct PatchSgdConfig {
  int64_t num_samples = 0, batch_size = 20, chunk_size = 64;
  std::string loss = kLogistic;
  double lr = 0.2;
};
void describe(auto& f, PatchSgdConfig& c) {
  f("loss", c.loss,
    "loss function: logistic (eqs. 2, 10), with more than two classes their cross entropy (eq. "
    "24); or linear (eq. 6), which trains routers alone, for pairs of consecutive classes",
    one_of({kLogistic, kLinear}), common);
  f("num_samples", c.num_samples,
    "number of training samples (N): the first of the data, of endless data from a position set by "
    "the run's seed; 0: one epoch",
    between(0, 1e7), renamed_from("samples"));
  f("batch_size", c.batch_size, "number of samples per step", between(1, 65536));
  f("lr", c.lr, "learning rate (eta) of all trained parameters", above(0.0));
  f("chunk_size", c.chunk_size, "number of steps computed together", between(1, 4096),
    renamed_from("block"));
}

int64_t samples_of(const PatchSgdConfig& config, const Dataset& data) {
  return config.num_samples > 0 ? config.num_samples : data.size();
}

/// Returns the names of the parameters that a phase moves: the linear loss moves the router alone.
std::vector<std::string> moved_by(const PMoE& model, const PhaseConfig& phase) {
  const bool linear = settings_of<PatchSgdConfig>(phase).loss == kLinear;
  const bool fixed_gates = model.moe.is_empty() || model.settings().router->gate == "one";
  std::vector<std::string> moved = trained_parameters(model, phase);
  std::erase_if(moved, [&](const std::string& name) {
    const bool neurons = model.named_parameters()[name].is_same(model.experts->w);
    return neurons ? linear : !linear && fixed_gates;
  });
  return moved;
}

/// Samples in memory, on the network's device.
struct PatchSamples {
  at::Tensor x_Nnd;    ///< float32, normalised, cut into patches.
  at::Tensor label_N;  ///< int64
};

/// Returns a run's `count` training samples, the first of which are the same for any count: of an
/// endless dataset they begin where the run's seed says.
PatchSamples read_samples(const std::shared_ptr<const Dataset>& data, uint64_t run_seed,
                          int64_t count, const Size2d& patch) {
  if (!data->has_images()) {
    const DatasetInputs inputs =
        data->generate(data->is_endless() ? stream_offset(run_seed) : 0, count);
    return {nn::patches_of(inputs.values_NCHW, patch).contiguous(), inputs.labels_N.contiguous()};
  }
  Loader loader(data->is_endless() ? make_sample(data, count, run_seed) : data,
                {.batch_size = count});
  const Batch batch = loader.next();
  // The samples are those of the theory: none stands for another.
  if (!batch.replaced.empty()) fail("{}", batch.replaced.begin()->second);
  return {nn::patches_of(batch.inputs, patch).contiguous(), batch.labels};
}

/// Returns the numbers of the samples of each of `count` steps from number `first` on: every epoch
/// has an order of its own, and a last batch that may be smaller.
std::vector<at::Tensor> batches_of(int64_t samples, int64_t batch, int64_t first, int64_t count,
                                   uint64_t seed) {
  const int64_t in_epoch = (samples + batch - 1) / batch;
  std::vector<at::Tensor> batches;
  at::Tensor order;
  for (int64_t step = first; step < first + count; ++step) {
    if (!order.defined() || step % in_epoch == 0) {
      const auto epoch = static_cast<uint64_t>(step / in_epoch);
      order = torch::tensor(permutation(samples, seed, mix64(stream_id("patch_sgd.order") + epoch)),
                            torch::kLong);
    }
    const int64_t begin = step % in_epoch * batch;
    batches.push_back(order.slice(0, begin, begin + batch));
  }
  return batches;
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

class PatchSgd final : public OnlinePhase {
 public:
  PatchSgd(const PhasePlan& plan, PhaseContext context)
      : OnlinePhase(plan, std::move(context)),
        config_(settings_of<PatchSgdConfig>(plan_.config)),
        model_(dynamic_cast<PMoE&>(*context_.model)),
        moved_(moved_by(model_, plan_.config)),
        count_(samples_of(config_, *context_.data)) {}

  StepReport make_step() override {
    const int64_t steps = steps_of(config_.chunk_size);
    const Batches batches = batches_of(count_, plan_.batch_size, steps_done_, steps, context_.seed);
    if (!samples_.x_Nnd.defined()) read();
    StepReport report{.metrics = config_.loss == kLinear ? train_routers(batches) : train(batches),
                      .lr = config_.lr,
                      .steps = steps};
    for (const at::Tensor& batch_B : batches) report.images += batch_B.size(0);
    return report;
  }

  std::string divergence_hint() const override { return lower_hint("lr", config_.lr); }

 private:
  using Metrics = std::map<std::string, double>;
  using Batches = std::vector<at::Tensor>;

  void read() {
    samples_ = read_samples(context_.data, context_.run_seed, count_, model_.settings().patch_size);
    check_classes(plan_.config.name, *context_.data, samples_.label_N);
    const at::Device device = model_.device();
    samples_ = {samples_.x_Nnd.to(device), samples_.label_N.to(device)};
  }

  /// Makes steps of Algorithm 1, step 3, or of Algorithm 2: the network routes and computes, and
  /// autograd differentiates its loss (eqs. 2, 10, 24).
  Metrics train(const Batches& batches) {
    model_.train();
    std::vector<at::Tensor> moved, before;
    for (const auto& item : model_.named_parameters()) {
      const bool moves = std::find(moved_.begin(), moved_.end(), item.key()) != moved_.end();
      at::Tensor parameter = item.value();
      parameter.requires_grad_(moves);
      if (!moves) continue;
      moved.push_back(parameter);
      before.push_back(parameter.detach().clone());
    }
    double loss = 0.0, accuracy = 0.0;
    try {
      for (const at::Tensor& batch_B : batches) {
        const at::Tensor ids_B = batch_B.to(samples_.x_Nnd.device());
        const at::Tensor label_B = samples_.label_N.index_select(0, ids_B);
        const at::Tensor x_Bnd = samples_.x_Nnd.index_select(0, ids_B);
        const at::AutoGradMode differentiable(true);
        const at::Tensor logits_BC = model_.forward_patches(x_Bnd, {}).logits;
        const at::Tensor mean = at::cross_entropy_loss(logits_BC, label_B);
        const std::vector<at::Tensor> slopes = torch::autograd::grad({mean}, moved);
        const torch::NoGradGuard no_grad;
        for (size_t i = 0; i < moved.size(); ++i) moved[i].sub_(slopes[i], config_.lr);
        check_finite(mean.item<double>(), moved);
        loss += mean.item<double>();
        accuracy += logits_BC.argmax(1).eq(label_B).to(at::kFloat).mean().item<double>();
      }
    } catch (...) {  // Steps of which one diverges change nothing.
      for (size_t i = 0; i < moved.size(); ++i) moved[i].copy_(before[i]);
      throw;
    }
    const auto steps = static_cast<double>(batches.size());
    return {{"loss", loss / steps}, {"accuracy", 100.0 * accuracy / steps}};
  }

  /// Makes steps on the linear loss (eq. 6), of each pair of classes with its own samples of a
  /// batch (section M.1).
  Metrics train_routers(const Batches& batches) {
    if (!sums_Nd_.defined()) sums_Nd_ = samples_.x_Nnd.sum(1);
    const at::Tensor router_Kd = router_rows(model_.moe).to(sums_Nd_.device());
    double loss = 0.0;
    for (const at::Tensor& batch_B : batches) {
      const at::Tensor ids_B = batch_B.to(sums_Nd_.device());
      const at::Tensor sums_Bd = sums_Nd_.index_select(0, ids_B);
      const at::Tensor label_B = samples_.label_N.index_select(0, ids_B);
      for (int64_t c = 0; c + 1 < router_Kd.size(0); c += 2) {
        const at::Tensor y_B = label_B.eq(c).to(at::kFloat) - label_B.eq(c + 1).to(at::kFloat);
        const at::Tensor step_d =
            y_B.unsqueeze(0).mm(sums_Bd).squeeze(0) / y_B.abs().sum().clamp_min(1.0);
        loss -= (router_Kd[c] - router_Kd[c + 1]).dot(step_d).item<double>();
        router_Kd[c].add_(step_d, config_.lr);
        router_Kd[c + 1].sub_(step_d, config_.lr);
      }
    }
    check_finite(loss, {router_Kd});
    set_router_rows(model_.moe, router_Kd);
    return {{"loss", loss / static_cast<double>(batches.size() * (router_Kd.size(0) / 2))}};
  }

  const PatchSgdConfig& config_;    ///< Part of plan_.
  PMoE& model_;                     ///< That of context_.
  std::vector<std::string> moved_;  ///< Names of parameters.
  int64_t count_;
  PatchSamples samples_;  ///< Undefined before the first step.
  at::Tensor sums_Nd_;    ///< Of the patches, for the linear loss.
};

/// Checks what the linear loss needs: a router for each class, in pairs.
void check_linear(const SettingLocations& locations, const PMoE& model, int64_t classes) {
  const std::string& name = locations.phase().name;
  if (model.moe.is_empty()) {
    fail_usage("{}: phase '{}': the model has no router to train; choose the loss 'logistic'",
               locations.find_in_model("router", "loss"), name);
  }
  const auto experts = static_cast<int64_t>(model.moe->kept().size());
  if (experts != classes || classes % 2 != 0) {
    fail_usage(
        "{}: phase '{}': the linear loss trains routers of pairs of classes, an expert each; there "
        "are {} experts and {} classes",
        locations.find_in_model("num_experts", "loss"), name, experts, classes);
  }
}

void plan_patch_sgd(PhasePlan& plan, const SettingLocations& locations, const Model& model,
                    const Dataset& data) {
  const PhaseConfig& phase = plan.config;
  const auto& config = settings_of<PatchSgdConfig>(phase);
  const auto* const network = dynamic_cast<const PMoE*>(&model);
  if (network == nullptr) {
    fail_needs(locations, locations.find_in_model("name", "kind"),
               "a patch-level mixture (moesaic list models)");
  }
  const auto classes = static_cast<int64_t>(data.info().classes.size());
  if (config.loss == kLinear) check_linear(locations, *network, classes);
  const int64_t samples = samples_of(config, data);
  if (samples < classes) {
    fail_usage("{0}: phase '{1}': {2} cannot cover all {3} classes of '{4}'; choose at least {3}",
               locations.find({"num_samples"}), phase.name, count_text(samples, "sample"), classes,
               phase.data);
  }
  if (!data.is_endless() && samples > data.size()) {
    fail_usage("{}: phase '{}': '{}' has {}, not {}", locations.find({"num_samples"}), phase.name,
               phase.data, count_text(data.size(), "sample"), samples);
  }
  if (moved_by(*network, phase).empty()) {
    fail_usage(
        "{}: phase '{}': 'trainable' and 'frozen' leave no parameter that the phase can train",
        locations.find({"trainable", "frozen", "kind"}), phase.name);
  }
  plan.batch_size = std::min(config.batch_size, samples);
  plan.steps_per_epoch = (samples + plan.batch_size - 1) / plan.batch_size;
  plan.steps = phase.steps ? *phase.steps : *phase.epochs * plan.steps_per_epoch;
}

}  // namespace

constinit AddPhaseKind add_patch_sgd = add_phase_kind<PatchSgd, PatchSgdConfig, plan_patch_sgd>;

}  // namespace moesaic
