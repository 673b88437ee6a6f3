// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/phase.h"

#include <torch/torch.h>

#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/base/random.h"
#include "moesaic/nn/init.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/train/clip.h"
#include "moesaic/train/schedule.h"

namespace moesaic {
namespace {

Optimizer::NamedParameters choose_parameters(Model& model, const PhaseConfig& phase) {
  Optimizer::NamedParameters chosen;
  const Patterns trains(phase.trains);
  for (const auto& item : model.named_parameters()) {
    at::Tensor parameter = item.value();
    const bool trained = trains.any_found_in(item.key());
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

/// Part `index` of `count`, which divide the batch.
Batch part_of(const Batch& batch, int64_t index, int64_t count) {
  if (count == 1) return batch;
  const int64_t size = batch.labels.size(0) / count;
  const auto cut = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, index * size, size) : tensor;
  };
  Batch part = batch;
  part.images = cut(batch.images);
  part.labels = cut(batch.labels);
  part.soft_labels = cut(batch.soft_labels);
  return part;
}

/// %, of all rows of logits, an image's members in a row.
at::Tensor accuracy_of(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor hits = logits.argmax(1).view({labels.size(0), -1}).eq(labels.unsqueeze(1));
  return hits.to(at::kFloat).mean() * 100;
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
      objective_{plan.config.label_smoothing, aux_loss_weights(plan.config.aux_losses, *model_),
                 plan.config.loss},
      optimizer_(choose_parameters(*model_, plan.config), plan.config.optimizer, plan.config.frozen,
                 plan.config.optimizers),
      gradient_scale_(plan.config.gradient_scale),
      loader_(std::move(data), loader_options(plan, seed, loader_threads)),
      min_loss_(state.min_loss),
      ended_(state.phase_stopped) {
  loader_.seek(state.epoch, state.batch);
  model_->set_recompute(plan.recompute);
  model_->train();
}

at::Generator Phase::generator() const {
  return nn::make_generator(
      mix64(mix64(seed_ ^ stream_id("forward")) + static_cast<uint64_t>(optimizer_.updates())),
      model_->device());
}

StepReport Phase::step() {
  const Batch batch = loader_.next().to(model_->device());
  Scalars scalars = accumulate(batch);
  optimizer_.scale_gradients(gradient_scale_);
  std::vector<at::Tensor> gradients = optimizer_.gradients();
  scalars.emplace_back("grad_norm", gradient_norm(gradients));
  StepReport report = read(scalars, batch);
  report.ends = ended_ = ends_with(report.metrics.at("loss"));
  if (ended_) {
    optimizer_.zero_grad();
    return report;
  }
  clip_gradients(gradients, report.metrics.at("grad_norm"), plan_.config.clip_norm);
  clip_gradient_values(gradients, plan_.config.clip_value);
  report.lr = learning_rate(plan_.config.schedule, plan_.config.optimizer.lr, optimizer_.updates(),
                            plan_.steps);
  optimizer_.step(report.lr);
  optimizer_.zero_grad();
  return report;
}

bool Phase::ends_with(double loss) {
  const auto& stop = plan_.config.stop;
  if (!stop) return false;
  if (!min_loss_ || loss <= *min_loss_) {
    min_loss_ = loss;
    return false;
  }
  if (optimizer_.updates() < stop->after_steps) return false;
  return loss <= stop->loss_threshold || (stop->loss_rise && loss > *min_loss_ + *stop->loss_rise);
}

Phase::Scalars Phase::accumulate(const Batch& part, const at::Generator& random, double fraction) {
  const ModelOutput output = [&] {
    const Autocast autocast(plan_.precision, part.images.device());
    return model_->forward(part.images, random);
  }();
  const Objective objective = compute_objective(output, part.labels, objective_, part.soft_labels);
  (fraction == 1.0 ? objective.loss : objective.loss * fraction).backward();
  Scalars scalars = {{"loss", objective.loss},
                     {"accuracy", accuracy_of(output.logits, part.labels)}};
  scalars.insert(scalars.end(), objective.terms.begin(), objective.terms.end());
  for (auto& [name, scalar] : scalars) scalar = scalar.detach().to(at::kDouble);
  return scalars;
}

Phase::Scalars Phase::accumulate(const Batch& batch) {
  const int64_t count = plan_.config.accumulate;
  const double fraction = 1.0 / static_cast<double>(count);
  const at::Generator random = generator();
  Scalars means = accumulate(part_of(batch, 0, count), random, fraction);
  for (int64_t index = 1; index < count; ++index) {
    const Scalars part = accumulate(part_of(batch, index, count), random, fraction);
    for (size_t i = 0; i < means.size(); ++i) means[i].second += part[i].second;
  }
  for (auto& [name, scalar] : means) scalar = scalar * fraction;
  return means;
}

// All numbers come over in one read, which is the step's only wait for the device.
StepReport Phase::read(const Scalars& scalars, const Batch& batch) const {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> list;
  for (const auto& [name, scalar] : scalars) list.push_back(scalar.to(at::kDouble));
  const at::Tensor values = at::stack(list).cpu();
  StepReport report;
  for (size_t i = 0; i < scalars.size(); ++i) {
    report.metrics[scalars[i].first] = values.const_data_ptr<double>()[i];
  }
  for (const char* name : {"loss", "grad_norm"}) {
    const double value = report.metrics.at(name);
    if (std::isnan(value)) fail("{} is nan", name);  // whose sign says nothing
    if (std::isinf(value)) fail("{} is {}", name, value);
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
