// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/gradient_phase.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/random.h"
#include "moesaic/data/views.h"
#include "moesaic/nn/init.h"
#include "moesaic/parallel/process_mesh.h"
#include "moesaic/train/distributed_run.h"

namespace moesaic {
namespace {

/// Returns the parameters that require gradients and are, or are not, of shared experts.
std::vector<at::Tensor> trained(const Model& model, bool shared) {
  const ExpertShards shares(model);
  std::vector<at::Tensor> chosen;
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad() && shares.has(item.key()) == shared) {
      chosen.push_back(item.value());
    }
  }
  return chosen;
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

/// Values of a device on their way to the host. The copy is one more work of the device's current
/// stream, for which nothing waits before take().
class DeferredCopy {
 public:
  /// Starts the copy. `values` must not change before take().
  explicit DeferredCopy(const at::Tensor& values) : host_(values) {
    const at::Device device = values.device();
    if (device.is_cpu() || device.is_meta()) return;
    // Copies to pageable memory would wait.
    host_ = at::empty(values.sizes(), values.options().device(at::kCPU).pinned_memory(true));
    host_.copy_(values, /*non_blocking=*/true);
    event_.emplace(device.type());
    event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }

  /// Waits until the values are here and returns them, on the CPU.
  at::Tensor take() const {
    if (event_) event_->synchronize();
    return host_.cpu();  // The meta device has no values: this is where it throws.
  }

 private:
  at::Tensor host_;
  std::optional<c10::Event> event_;  ///< End of the copy; none where values were here already.
};

LoaderOptions loader_options(const PhasePlan& plan, uint64_t seed, const PhaseContext& context) {
  const auto& config = settings_of<GradientConfig>(plan.config);
  LoaderOptions options{.batch_size = plan.batch_size,
                        .seed = seed,
                        .shuffle = true,
                        .drop_last = config.drop_last,
                        .num_threads = context.num_loader_threads,
                        .augment = config.augment};
  if (const ProcessMesh* const processes = context.processes.get()) {
    if (!config.drop_last && processes->size() > 1) {
      fail_usage("phase '{}': drop_last false is for one process; set it to true",
                 plan.config.name);
    }
    options.batch_indices = batch_indices_of_rank(
        plan.batch_size, config.gradient_accumulation_steps, config.micro_batch_order == kStrided,
        processes->rank(), processes->size());
    options.is_shared = true;
  }
  return options;
}

std::shared_ptr<const Dataset> training_data(const GradientConfig& config, PhaseContext& context) {
  if (config.num_samples == 0) return std::move(context.data);
  return make_sample(std::move(context.data), config.num_samples, context.run_seed);
}

/// Returns micro-batch `index` of the batch, as micro_batch_order divides it.
Batch micro_batch(const Batch& batch, int64_t index, const GradientConfig& config) {
  const int64_t count = config.gradient_accumulation_steps, images = batch.inputs.size(0);
  if (count == 1) return batch;
  Batch part = batch;
  for (at::Tensor* tensor : {&part.inputs, &part.labels, &part.soft_labels, &part.targets}) {
    if (!tensor->defined()) continue;
    *tensor = config.micro_batch_order == kStrided
                  ? tensor->slice(0, index, images, count).contiguous()
                  : tensor->narrow(0, index * (images / count), images / count);
  }
  return part;
}

/// Returns the metrics of these names. Throws DivergedError where the loss or the norm is not
/// finite.
std::map<std::string, double> finite_metrics(const std::vector<std::string>& names,
                                             const at::Tensor& values) {
  std::map<std::string, double> metrics;
  for (size_t i = 0; i < names.size(); ++i) metrics[names[i]] = values.const_data_ptr<double>()[i];
  for (const char* name : {"loss", "grad_norm"}) {
    const double value = metrics.at(name);
    if (std::isnan(value))
      throw DivergedError(fmt::format("{} is nan", name));  // The sign of nan says nothing.
    if (std::isinf(value)) throw DivergedError(fmt::format("{} is {}", name, value));
  }
  return metrics;
}

}  // namespace

DistributedGradients::DistributedGradients(const Model& model,
                                           std::shared_ptr<const ProcessMesh> processes)
    : processes_(std::move(processes)),
      dense_(trained(model, false)),
      experts_(trained(model, true)),
      of_dense_(dense_, processes_->gradient_group(), Traffic::gradients),
      of_experts_(experts_, processes_->replica_group(), Traffic::expert_gradients) {}

void DistributedGradients::backward(const at::Tensor& loss) try {
  of_dense_.prepare(loss);
  of_experts_.prepare(loss);
  loss.backward();
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients = gradients_of(experts_);  // Of shared experts.
  if (gradients.empty()) return;
  at::_foreach_mul_(gradients, 1.0 / static_cast<double>(processes_->expert_group().size()));
} catch (const Error&) {
  throw;
} catch (const c10::DistError& error) {
  throw PeerFailure(error.what_without_backtrace());
} catch (const c10::Error&) {
  throw;
} catch (const std::exception& error) {  // Gloo's, which the Reducer hands on.
  throw PeerFailure(error.what());
}

at::Tensor DistributedGradients::norm() const {
  const torch::NoGradGuard no_grad;
  const at::Tensor dense = gradient_norm(gradients_of(dense_));
  if (experts_.empty()) return dense;
  at::Tensor squared = gradient_norm(gradients_of(experts_)).square().reshape({1});
  processes_->expert_group().all_reduce(squared, Traffic::metrics);
  return (dense.square() + squared[0]).sqrt();
}

WeightAverage::WeightAverage(const Model& model, double decay) : decay_(decay) {
  if (decay == 0.0) return;
  const auto add = [&](const std::string& name, const at::Tensor& weight) {
    names_.push_back(name + ".ema");
    weights_.push_back(weight.detach());
    averages_.push_back(weight.detach().clone());
  };
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad()) add(item.key(), item.value());
  }
  for (const auto& item : model.named_buffers()) {
    if (item.value().defined() && item.value().is_floating_point()) add(item.key(), item.value());
  }
}

void WeightAverage::update() {
  if (!names_.empty()) at::_foreach_lerp_(averages_, weights_, 1.0 - decay_);
}

void WeightAverage::swap() {
  for (size_t i = 0; i < names_.size(); ++i) {
    const at::Tensor average = averages_[i].clone();
    averages_[i].copy_(weights_[i]);
    weights_[i].copy_(average);
  }
}

void WeightAverage::apply() const {
  for (size_t i = 0; i < names_.size(); ++i) weights_[i].copy_(averages_[i]);
}

void WeightAverage::save(TensorMap& tensors) const {
  for (size_t i = 0; i < names_.size(); ++i) tensors[names_[i]] = averages_[i];
}

void WeightAverage::load(TensorMap& tensors) {
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto saved = tensors.extract(names_[i]);
    if (saved.empty()) fail("average: '{}' is missing", names_[i]);
    if (saved.mapped().sizes() != averages_[i].sizes()) {
      fail("average: '{}' must have the shape {}, found {}", names_[i],
           c10::str(averages_[i].sizes()), c10::str(saved.mapped().sizes()));
    }
    averages_[i].copy_(saved.mapped());
  }
}

Optimizer::NamedParameters choose_parameters(Model& model, const PhaseConfig& phase) {
  Optimizer::NamedParameters chosen;
  const Patterns trains(phase.trainable);
  for (const auto& item : model.named_parameters()) {
    at::Tensor parameter = item.value();
    const bool trained = trains.any_matches(item.key());
    parameter.requires_grad_(trained);
    parameter.mutable_grad().reset();
    if (trained) chosen.emplace_back(item.key(), parameter);
  }
  return chosen;
}

GradientPhase::GradientPhase(const PhasePlan& plan, PhaseContext context)
    : plan_(plan),
      config_(settings_of<GradientConfig>(plan_.config)),
      seed_(context.seed),
      model_(std::move(context.model)),
      processes_(context.processes),
      before_optimizer_step_(std::move(context.before_optimizer_step)),
      objective_(objectives().at(config_.loss.name()).make(config_.loss, *model_, plan.precision)),
      optimizer_(choose_parameters(*model_, plan.config), config_.optimizer, plan.config.frozen,
                 config_.optimizers,
                 [this](const std::string& name) { return model_->layers_after(name); }),
      average_(*model_, config_.ema_decay),
      gradient_scale_(config_.gradient_scale),
      defers_metrics_(context.defer_metrics.value_or(!model_->device().is_cpu()) && !config_.stop),
      loader_(training_data(config_, context), loader_options(plan, seed_, context),
              model_->device()) {
  model_->set_activation_checkpointing(plan.activation_checkpointing);
  model_->train();
  if (context.measures_loads && !model_->moe_blocks().empty()) loads_.emplace(*model_);
  if (!processes_) return;
  shared_.emplace(*model_, processes_);
  if (!processes_->config().shard_optimizer) return;
  const ExpertShards shares(*model_);
  optimizer_.shard_state(processes_, [&](const std::string& name) { return shares.has(name); });
}

PhaseState GradientPhase::state() const {
  GradientPhaseState values = state_;
  values.num_steps = optimizer_.num_steps();
  TensorMap tensors = optimizer_.state();
  average_.save(tensors);
  return {to_json(values), std::move(tensors)};
}

void GradientPhase::load(const PhaseState& state) {
  state_ = parse<GradientPhaseState>(Value::from_json(state.values, "state.json"), "phase_state");
  TensorMap tensors = state.tensors;
  average_.load(tensors);
  optimizer_.load_state(tensors, state_.num_steps);
  // A file may say anything.
  const int64_t size = loader_.loader().dataset().size();
  std::erase_if(state_.replaced, [&](int64_t index) { return index >= size; });
  for (const int64_t index : state_.replaced) {
    loader_.loader().count_damaged(index, "", /*warns=*/false);
  }
  // An epoch of data that have changed, which a run may accept, can be shorter.
  loader_.seek(state_.epoch, std::min(state_.batch, loader_.batches_per_epoch()));
}

std::string GradientPhase::divergence_hint() const {
  const std::string phase = "phases." + plan_.config.name;
  const bool by_value = config_.clip_value > 0.0;
  const double clip = by_value ? config_.clip_value : config_.clip_norm;
  const std::string clipping =
      clip > 0.0 ? fmt::format("{}.{} ({} now)", phase, by_value ? "clip_value" : "clip_norm", clip)
                 : fmt::format("set {}.clip_norm, e.g. to 1", phase);
  return fmt::format("lower {}.optimizer.lr ({} now){} or {}", phase, config_.optimizer.lr,
                     config_.optimizers.empty() ? "" : " and those of its optimizers", clipping);
}

StepReport GradientPhase::step() {
  const Batch batch = loader_.next();
  replaced_ = batch.replaced;
  nn::set_batch_shard(*model_, {processes_});
  Scalars scalars = accumulate(batch);
  optimizer_.scale_gradients(gradient_scale_);
  std::vector<at::Tensor> gradients = optimizer_.gradients();
  const at::Tensor norm = shared_ ? shared_->norm() : gradient_norm(gradients);
  scalars.insert(scalars.begin() + 1, {"grad_norm", norm});
  StepReport report = report_of(scalars);
  report.images = config_.drop_last ? plan_.batch_size : batch.inputs.size(0);
  if (!defers_metrics_) {
    report.metrics = std::exchange(report.deferred_metrics, {})();
    state_.stopped = should_stop(report.metrics.at("loss"));
  }
  state_.epoch = batch.epoch;
  state_.batch = batch.position + 1;
  if (state_.batch == loader_.batches_per_epoch()) {
    ++state_.epoch;
    state_.batch = 0;
  }
  if (before_optimizer_step_) before_optimizer_step_();
  if (state_.stopped) {
    report.steps = 0;
    optimizer_.zero_grad();
    average_.apply();
    return report;
  }
  clip_gradients(gradients, norm, config_.clip_norm);
  clip_gradient_values(gradients, config_.clip_value);
  report.lr = rate(config_.schedule, config_.optimizer);
  std::vector<std::optional<double>> part_rates;
  for (const ParamGroupConfig& part : config_.optimizers) {
    part_rates.push_back(part.schedule ? std::optional(rate(*part.schedule, part.optimizer))
                                       : std::nullopt);
  }
  optimizer_.step(*report.lr, part_rates, skip_);
  optimizer_.zero_grad();
  average_.update();
  if (is_done()) average_.apply();
  return report;
}

void GradientPhase::swap_average() {
  if (config_.ema_decay == 0.0) return;
  if (before_optimizer_step_) before_optimizer_step_();  // 'best' may still be copied.
  average_.swap();
}

int GradientPhase::sync_step(int signal, const ProcessMesh* processes) {
  return sync_replaced_images(std::exchange(replaced_, {}), loader_.loader(), processes,
                              state_.replaced, signal);
}

double GradientPhase::rate(const ScheduleConfig& schedule, const OptimizerConfig& optimizer) const {
  return learning_rate(schedule, optimizer.lr, optimizer_.num_steps(), plan_.steps,
                       plan_.steps_per_epoch);
}

bool GradientPhase::should_stop(double loss) {
  const auto& stop = config_.stop;
  if (!stop) return false;
  if (!state_.min_loss || loss <= *state_.min_loss) {
    state_.min_loss = loss;
    return false;
  }
  if (optimizer_.num_steps() < stop->min_steps) return false;
  return loss <= stop->loss_threshold ||
         (stop->loss_rise && loss > *state_.min_loss + *stop->loss_rise);
}

GradientPhase::Scalars GradientPhase::accumulate(const Batch& batch) {
  const int64_t count = config_.gradient_accumulation_steps;
  const double fraction = 1.0 / static_cast<double>(count);
  // A function of run, phase and step.
  const at::Generator random = nn::make_generator(
      mix64(mix64(seed_ ^ stream_id("forward")) + static_cast<uint64_t>(optimizer_.num_steps())),
      model_->device());
  Scalars means;
  for (int64_t index = 0; index < count; ++index) {
    const LossTerms sum = (*objective_)(*model_, micro_batch(batch, index, config_), random);
    const at::Tensor loss = count == 1 ? sum.loss : sum.loss * fraction;
    const bool is_last = index + 1 == count;
    shared_&& is_last ? shared_->backward(loss) : loss.backward();
    Scalars part = {{"loss", sum.loss}};
    part.insert(part.end(), sum.terms.begin(), sum.terms.end());
    for (auto& [name, scalar] : part) scalar = scalar.detach().to(at::kDouble);
    for (size_t i = 0; i < means.size(); ++i) means[i].second += part[i].second;
    if (index == 0) means = std::move(part);
  }
  for (auto& [name, scalar] : means) scalar = scalar * fraction;
  return means;
}

// All values are copied in one read, the only synchronisation of a step with the device.
StepReport GradientPhase::report_of(const Scalars& scalars) {
  const torch::NoGradGuard no_grad;
  std::vector<std::string> names;
  std::vector<at::Tensor> list;
  for (const auto& [name, scalar] : scalars) {
    names.push_back(name);
    list.push_back(scalar.to(at::kDouble));
  }
  at::Tensor values = at::stack(list);
  if (loads_) {
    values = at::cat({values, loads_->take()});
    names.insert(names.end(), loads_->names().begin(), loads_->names().end());
  }
  if (processes_) {  // Each has the mean over its shard of the batch, and the same gradient norm.
    processes_->world().all_reduce(values, Traffic::metrics);
    values.div_(processes_->size());
  }
  if (defers_metrics_) {
    const at::Tensor skip =
        values.narrow(0, 0, 2).isfinite().all().logical_not().to(at::kFloat);  // Loss and norm.
    skip_ = skip_.defined() ? at::maximum(skip_, skip) : skip;
  }
  const auto copy = std::make_shared<DeferredCopy>(values);
  return {.deferred_metrics = [names = std::move(names), copy] {
    return finite_metrics(names, copy->take());
  }};
}

}  // namespace moesaic
