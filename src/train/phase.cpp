// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/phase.h"

#include <torch/torch.h>

#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/base/random.h"
#include "moesaic/nn/init.h"
#include "moesaic/train/clip.h"
#include "moesaic/train/schedule.h"

namespace moesaic {
namespace {

Optimizer::NamedParameters choose_parameters(Model& model, const PhaseConfig& phase) {
  Optimizer::NamedParameters chosen;
  for (const auto& item : model.named_parameters()) {
    at::Tensor parameter = item.value();
    const bool trained = matches_any(item.key(), phase.trains);
    parameter.requires_grad_(trained);
    parameter.mutable_grad().reset();
    if (trained) chosen.emplace_back(item.key(), parameter);
  }
  return chosen;
}

LoaderOptions loader_options(const PhasePlan& plan, uint64_t seed, int64_t threads) {
  LoaderOptions options;
  options.batch_size = std::min(plan.config.batch_size, plan.images);
  options.seed = seed;
  options.shuffle = true;
  options.drop_last = true;
  options.threads = threads;
  options.augment = plan.config.augment;
  return options;
}

}  // namespace

uint64_t phase_seed(int64_t run_seed, int64_t phase_index) {
  return mix64(mix64(static_cast<uint64_t>(run_seed)) + static_cast<uint64_t>(phase_index));
}

Phase::Phase(const PhasePlan& plan, std::shared_ptr<Model> model,
             std::shared_ptr<const Dataset> data, uint64_t seed, int64_t loader_threads,
             const TrainState& state)
    : plan_(plan),
      seed_(seed),
      model_(std::move(model)),
      objective_{plan.config.label_smoothing, aux_loss_weights(plan.config.aux_losses, *model_)},
      optimizer_(choose_parameters(*model_, plan.config), plan.config.optimizer),
      loader_(std::move(data), loader_options(plan, seed, loader_threads)) {
  loader_.seek(state.epoch, state.batch);
  model_->train();
}

at::Generator Phase::generator() const {
  return nn::make_generator(
      mix64(mix64(seed_ ^ stream_id("forward")) + static_cast<uint64_t>(optimizer_.updates())));
}

StepReport Phase::step() {
  const Batch batch = loader_.next();
  const ModelOutput output = model_->forward(batch.images, generator());
  const Objective objective = compute_objective(output, batch.labels, objective_);
  objective.loss.backward();

  std::vector<at::Tensor> gradients = optimizer_.gradients();
  StepReport report = read(objective, output.logits, batch, gradient_norm(gradients));
  clip_gradients(gradients, report.metrics.at("grad_norm"), plan_.config.clip_norm);
  report.lr = learning_rate(plan_.config.schedule, plan_.config.optimizer.lr, optimizer_.updates(),
                            plan_.steps);
  optimizer_.step(report.lr);
  optimizer_.zero_grad();
  return report;
}

// All numbers come over in one read, which is the step's only wait for the device.
StepReport Phase::read(const Objective& objective, const at::Tensor& logits, const Batch& batch,
                       const at::Tensor& norm) const {
  const torch::NoGradGuard no_grad;
  std::vector<std::string> names = {"loss", "grad_norm", "accuracy"};
  std::vector<at::Tensor> scalars = {objective.loss, norm,
                                     logits.argmax(1).eq(batch.labels).to(at::kFloat).mean() * 100};
  for (const auto& [name, term] : objective.terms) {
    names.push_back(name);
    scalars.push_back(term);
  }
  for (at::Tensor& scalar : scalars) scalar = scalar.detach().to(at::kDouble);
  const at::Tensor values = at::stack(scalars).cpu();
  StepReport report;
  for (size_t i = 0; i < names.size(); ++i) {
    report.metrics[names[i]] = values.const_data_ptr<double>()[i];
  }
  for (const char* name : {"loss", "grad_norm"}) {
    if (!std::isfinite(report.metrics.at(name))) fail("{} is {}", name, report.metrics.at(name));
  }
  report.images = batch.labels.size(0);
  report.epoch = batch.epoch;
  report.batch = batch.position + 1;
  if (report.batch == loader_.batches_per_epoch()) {
    ++report.epoch;
    report.batch = 0;
  }
  return report;
}

}  // namespace moesaic
