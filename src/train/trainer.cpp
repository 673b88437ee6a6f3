// SPDX-License-Identifier: Apache-2.0
// The loops come first, then the functions that they call.
#include "moesaic/train/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <thread>

#include "moesaic/base/log.h"
#include "moesaic/data/views.h"
#include "moesaic/ops/device.h"
#include "moesaic/parallel/process_mesh.h"
#include "moesaic/train/distill.h"
#include "moesaic/train/distributed_run.h"

namespace moesaic {

namespace {

bool better(const MetricInfo& metric, double value, const std::optional<double>& best) {
  if (!best || !std::isfinite(value)) return std::isfinite(value);
  return metric.direction == Direction::higher_is_better ? value > *best : value < *best;
}

std::string in_words(const MetricInfo& metric, double value) {
  const std::string number =
      metric.unit == " %" ? fmt::format("{:.2f}", value) : fmt::format("{:.4g}", value);
  return fmt::format("{} {}{}", metric.name, number, metric.unit);
}

}  // namespace

TrainResult Trainer::run() {
  const at::Device device(options_.device);
  const BackendScope backend(device, {.deterministic = config_.deterministic,
                                      .wants_cudnn_benchmark = model_->wants_cudnn_benchmark(),
                                      .tf32 = config_.tf32});
  if (state_.phase.empty()) open_recorder();  // What the phase prunes at its entry is written.
  while (!is_complete()) {
    const std::unique_ptr<Phase> phase = enter_phase();
    open_recorder();  // Lines behind the checkpoint go once it could be loaded.
    train(*phase);
    if (!result_.is_complete) {
      if (!is_in_memory()) save_step(*phase);
      break;
    }
    leave_phase(*phase);
  }
  finish_save();
  if (result_.is_complete && options_.on_step) options_.on_step(*model_, state_.step);
  result_.steps = state_.step;
  return result_;
}

void Trainer::train(Phase& phase) {
  poll(phase);
  evaluate_due(phase);  // Of an evaluation that a signal cut short, or of a phase without steps.
  while (!phase.is_done() && should_continue()) {
    StepResult made = step(phase);
    record_save(saves_.poll());
    flush_metrics(phase);  // The step before, which ended while this one was started.
    // At its end a phase is saved by leave_phase().
    const bool saves = !is_in_memory() && !made.is_last_of_phase &&
                       config_.checkpoint_every.is_completed_by(
                           made.report.steps, made.step, made.phase_step, plan().steps_per_epoch);
    const bool waits = !made.report.deferred_metrics || made.is_last_of_phase || saves ||
                       !state_.evaluations_due.empty();
    pending_metrics_ = std::move(made);
    if (waits) flush_metrics(phase);
    evaluate_due(phase);
    if (saves) save_step(phase);
  }
  flush_metrics(phase);
  if (result_.signal != 0) result_.is_complete = false;
  if (progress_) progress_->finish();
}

// A process that is lost breaks a collective, and no wait of another thread for what it writes.
void Trainer::wait_for_writers() {
  constexpr std::chrono::milliseconds kPause(20);
  while (options_.processes &&
         options_.processes->all_reduce_max(saves_.is_running() ? 1 : 0) != 0) {
    std::this_thread::sleep_for(kPause);
  }
}

bool Trainer::is_rank_zero() const {
  return !options_.processes || options_.processes->is_rank_zero();
}

bool Trainer::should_continue() {
  if (result_.signal != 0) return false;
  if (options_.on_step && !options_.on_step(*model_, state_.step)) result_.is_complete = false;
  return result_.is_complete;
}

Trainer::StepResult Trainer::step(Phase& phase) {
  StepReport report;
  if (options_.processes) {
    options_.processes->set_activity(
        fmt::format("step {} of phase '{}'", state_.step + 1, state_.phase));
  }
  try {
    report = phase.step();
    poll(phase);
  } catch (const Error&) {
    flush_metrics(phase);  // Where the step before diverged, that is the cause.
    fail_step(phase, state_.step + 1);
  }
  state_.step += report.steps;
  state_.phase_step += report.steps;
  state_.evaluations_due = evaluations_after(phase, report.steps);
  return {std::move(report), state_.step, state_.phase_step, phase.is_done()};
}

void Trainer::flush_metrics(const Phase& phase) {
  if (!pending_metrics_) return;
  StepResult made = *std::exchange(pending_metrics_, std::nullopt);
  try {
    if (made.report.deferred_metrics) made.report.metrics = made.report.deferred_metrics();
  } catch (const Error&) {
    fail_step(phase, made.step);
  }
  record(made);
}

void Trainer::fail_step(const Phase& phase, int64_t step) try {
  saves_.wait_for_copy();  // Of the network before this step: what it finds is the cause.
  throw;
} catch (const PeerFailure&) {
  throw;  // Where it happened says another process.
} catch (const NonFiniteError& error) {
  fail_diverged(phase, pending_save_.step, error.what());
} catch (const DivergedError& error) {
  fail_diverged(phase, step, error.what());
} catch (const Error& error) {
  fail_at(step, error.what());
}

void Trainer::fail_diverged(const Phase& phase, int64_t step, const std::string& what) {
  const std::string remedy = phase.divergence_hint();
  fail_at(step, fmt::format("training diverged: {}{}{}", what, remedy.empty() ? "" : "; ", remedy));
}

void Trainer::fail_at(int64_t step, const std::string& what) {
  try {
    // It may be the last checkpoint. Other processes may not come to write their shards any more.
    record_save(options_.processes ? saves_.poll() : saves_.wait());
  } catch (const Error& error) {
    log_warning("{}", error.what());
  }
  fail("phase '{}', step {}: {}; {}", state_.phase, step, what,
       result_.checkpoint.empty() ? "there is no checkpoint yet"
                                  : "the last checkpoint is " + result_.checkpoint.string());
}

std::vector<std::string> Trainer::evaluations_after(const Phase& phase, int64_t steps) {
  if (!plan().config.evaluate || is_in_memory()) return {};
  std::vector<std::string> splits = evaluation_splits();
  if (phase.is_done()) return splits;
  const Interval& every = config_.evaluate_every;
  const int64_t epoch = plan().steps_per_epoch;
  if (!every.is_completed_by(steps, state_.step, state_.phase_step, epoch)) return {};
  splits.resize(1);  // Test data that validation data stand in for are for the end.
  return splits;
}

std::unique_ptr<Phase> Trainer::enter_phase() {
  const bool fresh = state_.phase.empty();
  if (fresh) prepare_network();
  if (fresh && options_.processes) broadcast_network(*options_.processes, *model_);
  const PhaseConfig& config = plan().config;
  if (!input_) {
    input_ = input_spec(*datasets_.get(config.data, "train", config.preprocess), config.preprocess);
    if (!input_->classes.empty() && !classes_.empty()) input_->classes = classes_;
    classes_ = input_->classes;
  }
  PhaseContext context{.model = model_,
                       .data = data("train"),
                       .seed = phase_seed(config_.seed, state_.phase_index),
                       .run_seed = static_cast<uint64_t>(config_.seed),
                       .num_loader_threads = config_.num_loader_threads,
                       .before_optimizer_step = [this] { saves_.wait_for_copy(); },
                       .measures_loads = !is_in_memory()};
  const PhaseKind& kind = phase_kinds().at(config.kind.name());
  if (options_.processes && kind.check_processes) {
    context.processes = options_.processes;
    shard_experts(*model_, options_.processes);
  }
  PhasePlan made = plan();
  if (std::string* const teacher = find_teacher(made.config);
      teacher != nullptr && is_earlier_phase(*teacher)) {
    if (is_in_memory()) {
      fail_usage("phase '{}': teacher '{}' is a phase of a run without a folder; give a checkpoint",
                 config.name, *teacher);
    }
    *teacher = folder_->phase_checkpoint(*teacher).string();
  }
  auto phase = kind.make(made, std::move(context));
  if (fresh) {
    state_.phase = config.name;
    if (phase->is_done()) state_.evaluations_due = evaluations_after(*phase, 0);
  } else {
    restore(*phase);
  }
  if (options_.show_progress && !is_in_memory() && is_rank_zero() && !phase->is_done()) {
    progress_.emplace(ProgressOptions{.label = config.name,
                                      .total = plan().steps * plan().batch_size,
                                      .unit = example_noun(data_info()) + "s",
                                      .start = state_.phase_step * plan().batch_size});
  }
  throughput_.restart();
  return phase;
}

std::shared_ptr<const Dataset> Trainer::data(const std::string& split) {
  const std::string_view remedy =
      split == "train" ? "begin another run with init and on_entry.new_head" : kRenameClass;
  return preprocessed(
      with_classes_of(datasets_.get(plan().config.data, split), input_->classes, remedy), *input_);
}

void Trainer::prepare_network() {
  const EntryConfig& entry = plan().config.on_entry;
  if (!entry.restore.empty()) {
    model_ = network_after(entry.restore);
    classes_ = is_in_memory() ? phase_snapshots_.at(entry.restore).classes
                              : class_names_of(folder_->phase_checkpoint(entry.restore));
  }
  if (entry.new_head) classes_.clear();  // The data's names take their place.
  model_->to(at::kCPU);
  if (entry.upcycle) model_ = model_->upcycled(*entry.upcycle, entry_seed("upcycle"));
  if (entry.prune) prune(*entry.prune);
  if (entry.new_head) model_->reset_head(plan().num_outputs);
  model_->to(at::Device(options_.device));
}

void Trainer::prune(const PrunePhaseConfig& config) {
  const uint64_t seed = entry_seed("prune");
  std::shared_ptr<Model> pretrained;  // What pruning compares with, if anything.
  if (const std::string& name = config.pretrained; !name.empty()) {
    pretrained = is_earlier_phase(name) ? network_after(name) : load_model(name, config_.trust);
  }
  std::optional<ExpertStatistics> use;
  if (replacement_needs_images(config.replace) || criterion_of(config.criterion).needs_images) {
    const PhaseConfig& phase = plan().config;
    const std::string split = calibration_split(evaluation_splits());
    use = calibrate(*model_, datasets_.get(phase.data, split, phase.preprocess),
                    {.num_images = config.num_calibration_images,
                     .batch_size = config_.evaluate_batch_size,
                     .num_loader_threads = config_.num_loader_threads,
                     .seed = seed});
  }
  const PrunePlan pruned = plan_pruning(
      {.finetuned = *model_, .pretrained = pretrained.get(), .statistics = use ? &*use : nullptr},
      {.criterion = config.criterion,
       .keep = KeepSpec::from_value(config.keep),
       .replace = config.replace,
       .seed = seed});
  apply_plan(*model_, pruned);
  if (recorder_) recorder_->write("prune", state_.step, to_json(pruned), tag_of("prune"));
}

std::shared_ptr<Model> Trainer::network_after(const std::string& phase) const {
  if (!is_in_memory()) return load_model(folder_->phase_checkpoint(phase));
  const PhaseSnapshot& ended = phase_snapshots_.at(phase);
  return model_of(Value::from_json(ended.model, "model"), ended.tensors,
                  fmt::format("phase '{}'", phase));
}

bool Trainer::is_earlier_phase(const std::string& name) const {
  return std::any_of(plan_.begin(), plan_.begin() + state_.phase_index,
                     [&](const PhasePlan& plan) { return plan.config.name == name; });
}

void Trainer::leave_phase(const Phase& phase) {
  progress_.reset();
  state_.is_phase_complete = true;
  if (!is_in_memory()) {
    save(phase, folder_->phase_checkpoint(state_.phase));
    save_step(phase);
    finish_save();  // The next phase may take it up.
  }
  unshard_experts(*model_);
  nn::set_batch_shard(*model_, {});
  const bool is_used_later = std::ranges::any_of(plan_, [&](const PhasePlan& plan) {
    const EntryConfig& entry = plan.config.on_entry;
    return entry.restore == state_.phase ||
           (entry.prune && entry.prune->pretrained == state_.phase);
  });
  if (is_in_memory() && is_used_later) {
    PhaseSnapshot& ended =
        phase_snapshots_[state_.phase] = {model_->config(), state_of(*model_), classes_};
    for (auto& [name, tensor] : ended.tensors) tensor = tensor.to(at::kCPU).clone();
  }
  if (options_.on_phase_end) options_.on_phase_end(*model_, state_.phase, state_.step);
  if (is_in_last_phase() && state_.best_value) {
    const MetricInfo metric = metric_of(data_info(), config_.best_metric);
    result_.best = folder_->best();
    result_.best_value = fmt::format("{} {} at step {}", evaluation_splits().front(),
                                     in_words(metric, *state_.best_value), state_.best_step);
  }
  state_ = state_.next_phase();
  input_.reset();
}

Evaluation Trainer::evaluate_on(const Phase& phase, const std::string& split) try {
  const PhaseConfig& config = plan().config;
  EvaluateOptions options{.batch_size = config_.evaluate_batch_size,
                          .num_loader_threads = config_.num_loader_threads,
                          .loss = objective_name(config),
                          .precision = config_.precision,
                          .processes = options_.processes};
  std::optional<Progress> bar;
  if (options_.show_progress && is_rank_zero()) {
    bar.emplace(ProgressOptions{.label = split == "test" ? "testing" : "validating",
                                .unit = example_noun(data_info()) + "s",
                                .has_summary = false});
  }
  options.on_progress = [&](int64_t done, int64_t total) {
    if (bar) bar->show(done, total);
    return local_signal() == 0;
  };
  const Evaluation evaluation = evaluate(*model_, data(split), options);
  if (progress_) progress_->exclude_time(evaluation.seconds);
  return evaluation;
} catch (const DivergedError& error) {
  fail_diverged(phase, state_.step, fmt::format("{} split: {}", split, error.what()));
}

void Trainer::evaluate_due(Phase& phase) {
  if (state_.evaluations_due.empty()) return;
  phase.swap_average();
  while (!state_.evaluations_due.empty() && result_.signal == 0) {
    const std::string split = state_.evaluations_due.front();
    const Evaluation evaluation = evaluate_on(phase, split);
    throughput_.restart();
    poll(phase);
    if (!evaluation.is_complete) break;
    state_.evaluations_due.erase(state_.evaluations_due.begin());
    result_.evaluation = evaluation;
    record_evaluation(phase, split, evaluation);
  }
  phase.swap_average();
}

void Trainer::record_evaluation(const Phase& phase, const std::string& split,
                                const Evaluation& evaluation) {
  const MetricInfo followed = metric_of(data_info(), is_in_last_phase() ? config_.best_metric : "");
  double value = evaluation.metric(followed.name);
  if (options_.processes)
    value = options_.processes->broadcast_from_rank_zero(value);  // All decide alike.
  if (progress_) progress_->advance(0, split + " " + in_words(followed, value));
  const std::string& data = plan().config.data;
  Json line = {
      {"phase", state_.phase}, {"data", data}, {"split", split}, {"images", evaluation.num_images}};
  line.update(rounded_numbers(to_json(evaluation.metrics)));
  line["routing"] = routing_line(evaluation, *model_);
  if (recorder_) {
    const std::string tag = tag_of(split);
    recorder_->write("eval", state_.step, line, tag);
    recorder_->add_scalar(tag + "/images_per_second", evaluation.images_per_second, state_.step);
  }
  log_info("{}, step {}: {} {}, loss {:.4f}, evaluated at {:.0f} {}s/s", state_.phase, state_.step,
           split, in_words(followed, value), evaluation.metric("loss"),
           evaluation.images_per_second, example_noun(data_info()));
  if (!is_in_last_phase() || split != evaluation_splits().front()) return;
  if (!std::isfinite(value) && !std::exchange(has_warned_of_best_, true)) {
    log_warning("{}, step {}: {} {} is not finite; 'best' ignores this evaluation", state_.phase,
                state_.step, split, followed.name);
  }
  if (!better(followed, value, state_.best_value)) return;
  state_.best_value = value;
  state_.best_step = state_.step;
  save(phase, folder_->best());
}

void Trainer::record(const StepResult& made) {
  if (is_in_memory() || !is_rank_zero()) return;
  const StepReport& report = made.report;
  state_.window.add(report.metrics, report.steps);
  throughput_.add(report.images);
  if (progress_) {
    const auto loss = report.metrics.find("loss");
    const std::string note =
        loss == report.metrics.end() ? "" : fmt::format("loss {:.4f}", loss->second);
    progress_->advance(report.images, note);
  }
  const bool due = config_.log_every.is_completed_by(report.steps, made.step, made.phase_step,
                                                     plan().steps_per_epoch);
  if (!made.is_last_of_phase && !due) return;
  const double epochs =
      static_cast<double>(made.phase_step) / static_cast<double>(plan().steps_per_epoch);
  Json line = {{"phase", state_.phase}, {"epoch", rounded(epochs)}};
  if (report.lr) line["lr"] = rounded(*report.lr);
  const MetricWindow window = std::exchange(state_.window, {});
  std::map<std::string, double> means = window.means();
  const std::vector<LayerLoads> loads = take_loads(means);
  for (const auto& [name, mean] : means) line[name] = rounded(mean);
  if (!loads.empty()) line["routing"] = to_json(loads);
  for (const std::string& message : starved_.add(loads, window.steps)) {
    log_warning("{}, step {}: {}", state_.phase, made.step, message);
  }
  const std::string tag = tag_of("train");
  recorder_->write("train", made.step, line, tag);
  recorder_->add_scalar(tag + "/images_per_second", throughput_.take(), made.step);
}

void Trainer::save(const Phase& phase, const fs::path& folder) try {
  PhaseState of_phase = phase.state();
  if (recorder_) {
    recorder_->sync();
    state_.metrics_lines = recorder_->lines();
  }
  state_.phase_state = Value::from_json(of_phase.values, "phase_state");
  const Json config = {{"model", model_->config()},
                       {"data", plan().config.data},
                       {kInputKey, document_of(*input_)},
                       {"run", to_json(config_)}};
  const bool of_step = step_of(folder).has_value();
  const auto write = [this, folder, config, state = to_json(state_), of_step](const auto& copy) {
    save_distributed(options_.processes.get(), folder, copy, config, state);
    if (of_step && is_rank_zero()) folder_->keep_last(config_.num_checkpoints);
  };
  const PhaseKind& kind = phase_kinds().at(plan().config.kind.name());
  CheckpointShard shard{state_of(*model_), std::move(of_phase.tensors)};
  // On another device the copy would wait behind the next step's kernels.
  const bool until_optimizer_step =
      kind.overlaps_save && model_->device().is_cpu() && !phase.is_done() && result_.is_complete;
  if (until_optimizer_step) {
    for (const auto& item : model_->named_buffers()) {
      if (item.value().defined()) shard.model[item.key()] = item.value().clone();
    }
  }
  if (options_.processes) {
    shard = ExpertShards(*model_).local_shard(
        shard, *options_.processes, kind.check_processes && config_.parallel.shard_optimizer);
  }
  record_save(saves_.start(std::move(shard), write, [this] { wait_for_writers(); }));
  pending_save_ = {folder, state_.step};
  if (!until_optimizer_step) saves_.wait_for_copy();
} catch (const NonFiniteError& error) {
  fail_diverged(phase, pending_save_.step, error.what());
}

void Trainer::record_save(const std::optional<SaveTimes>& times) {
  if (!times) return;
  if (step_of(pending_save_.folder)) result_.checkpoint = pending_save_.folder;
  if (!recorder_) return;
  recorder_->add_scalar("save/pause_seconds", times->pause(), pending_save_.step);
  recorder_->add_scalar("save/copy_seconds", times->copy, pending_save_.step);
  recorder_->add_scalar("save/write_seconds", times->write, pending_save_.step);
}

}  // namespace moesaic
