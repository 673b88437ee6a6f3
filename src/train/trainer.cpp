// SPDX-License-Identifier: Apache-2.0
// The loops come first, what they call below.
#include "moesaic/train/trainer.h"

#include <fmt/format.h>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/random.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/models/registry.h"
#include "moesaic/train/phase_entry.h"

namespace moesaic {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

/// Numbers with as many digits as they deserve.
Json rounded_numbers(const Json& json) {
  Json copy = json;
  for (auto& [key, value] : copy.items()) {
    if (value.is_number_float()) value = rounded(value.get<double>());
    if (value.is_object()) value = rounded_numbers(value);
  }
  return copy;
}

Json eval_line(const std::string& phase, const std::string& data, const Evaluation& evaluation) {
  Json line = {{"phase", phase}, {"data", data}, {"images", evaluation.images}};
  line.update(rounded_numbers(to_json(static_cast<const ClassificationMetrics&>(evaluation))));
  line["routing"] = to_json(evaluation.routing);
  for (Json& layer : line["routing"]) {  // a row for each class is too much for a line
    layer.erase("dispatch");
    layer.erase("group_dispatch");
  }
  return line;
}

}  // namespace

TrainResult Trainer::run() {
  if (!complete()) recorder_.emplace(folder_->root(), state_.metrics_lines);
  while (!complete()) {
    const std::unique_ptr<Phase> phase = enter_phase();
    train(*phase);
    if (stopped()) {
      save_step(*phase);
      result_.signal = options_.stop->number();
      break;
    }
    leave_phase(*phase);
  }
  result_.steps = state_.step;
  return result_;
}

void Trainer::train(Phase& phase) {
  if (state_.evaluation_due) evaluate_phase(phase);  // cut short by a signal, or no step to make
  while (!phase.done() && !stopped()) {
    const StepReport report = step(phase);
    record(phase, report);
    if (state_.evaluation_due) evaluate_phase(phase);
    if (checkpoint_due(phase)) save_step(phase);
  }
  if (progress_) progress_->finish();
}

StepReport Trainer::step(Phase& phase) try {
  const StepReport report = phase.step();
  state_.min_loss = phase.min_loss();
  state_.phase_stopped = report.ends;
  if (!report.ends) {
    ++state_.step;
    ++state_.phase_step;
  }
  state_.optimizer_steps = phase.optimizer().updates();
  state_.epoch = report.epoch;
  state_.batch = report.batch;
  state_.evaluation_due = evaluation_due(phase);
  return report;
} catch (const Error& error) {
  fail("phase '{}', step {}: {}; {}", state_.phase, state_.step + 1, error.what(),
       result_.checkpoint.empty() ? "there is no checkpoint yet"
                                  : "the last checkpoint is " + result_.checkpoint.string());
}

bool Trainer::evaluation_due(const Phase& phase) const {
  if (!phase.plan().config.evaluate) return false;
  const int64_t every = config_.evaluate_every * phase.plan().batches_per_epoch;
  return phase.done() || (every > 0 && state_.phase_step % every == 0);
}

// At its end a phase is saved by leave_phase().
bool Trainer::checkpoint_due(const Phase& phase) const {
  const int64_t every = config_.checkpoint_every;
  return every > 0 && state_.step % every == 0 && !phase.done();
}

std::unique_ptr<Phase> Trainer::enter_phase() {
  const PhasePlan& plan = plan_[static_cast<size_t>(state_.phase_index)];
  const bool fresh = state_.phase.empty();
  if (fresh) prepare_network(plan);
  auto phase = std::make_unique<Phase>(
      plan, model_, datasets_.get(plan.config.data, "train", plan.config.preprocess),
      phase_seed(config_.seed, state_.phase_index), config_.loader_threads, state_);
  if (fresh) {
    state_.phase = plan.config.name;
    state_.evaluation_due = plan.steps == 0 && plan.config.evaluate;
  } else {
    phase->optimizer().load_state(resumed_optimizer_, state_.optimizer_steps);
    resumed_optimizer_.clear();
  }
  if (options_.progress && !phase->done()) {
    const int64_t batch = std::min(plan.config.batch_size, plan.images);
    progress_.emplace(ProgressOptions{.label = plan.config.name,
                                      .total = plan.steps * batch,
                                      .start = state_.phase_step * batch});
  }
  throughput_.restart();
  return phase;
}

void Trainer::prepare_network(const PhasePlan& plan) {
  const EntryConfig& entry = plan.config.on_entry;
  fs::path pretrained = entry.prune ? entry.prune->pretrained : "";
  for (int64_t i = 0; i < state_.phase_index; ++i) {
    const std::string& earlier = plan_[static_cast<size_t>(i)].config.name;
    if (pretrained == earlier) pretrained = folder_->phase_checkpoint(earlier);
  }
  const uint64_t seed = mix64(phase_seed(config_.seed, state_.phase_index) ^ stream_id("prune"));
  model_->to(at::kCPU);
  const auto pruned = apply_entry(*model_, entry, plan.classes, pretrained, seed);
  model_->to(at::Device(options_.device));
  if (pruned) recorder_->write("prune", state_.step, to_json(*pruned));
}

void Trainer::leave_phase(Phase& phase) {
  progress_.reset();
  state_.phase_complete = true;
  save(phase, folder_->phase_checkpoint(state_.phase));
  save_step(phase);
  state_ = state_.next_phase();
}

void Trainer::evaluate_phase(const Phase& phase) {
  const PhaseConfig& config = phase.plan().config;
  EvaluateOptions options{
      config_.evaluate_batch_size, config_.loader_threads, {}, config.loss, config_.precision};
  options.proceed = [this](int64_t done, int64_t total) {
    if (progress_) progress_->advance(0, fmt::format("testing {}%", 100 * done / total));
    return !stopped();
  };
  const Evaluation evaluation =
      evaluate(*model_, datasets_.get(config.data, "test", config.preprocess), options);
  throughput_.restart();
  if (!evaluation.complete) return;
  state_.evaluation_due = false;
  result_.evaluation = evaluation;
  if (progress_) progress_->advance(0, fmt::format("test accuracy {:.2f} %", evaluation.accuracy));
  recorder_->write("eval", state_.step, eval_line(state_.phase, config.data, evaluation));
  recorder_->scalar("eval/images_per_second", evaluation.images_per_second, state_.step);
  log_info("{}, step {}: test accuracy {:.2f} %, loss {:.4f}, {:.0f} images/s", state_.phase,
           state_.step, evaluation.accuracy, evaluation.loss, evaluation.images_per_second);
  if (!in_last_phase() || evaluation.accuracy <= state_.best_accuracy.value_or(-1.0)) return;
  state_.best_accuracy = evaluation.accuracy;
  state_.best_step = state_.step;
  save(phase, folder_->best());
}

void Trainer::record(const Phase& phase, const StepReport& report) {
  state_.window.add(report.metrics);
  throughput_.add(report.images);
  if (progress_) {
    progress_->advance(report.images, fmt::format("loss {:.4f}", report.metrics.at("loss")));
  }
  if (state_.step % config_.log_every != 0 && !phase.done()) return;
  const double epochs =
      static_cast<double>(state_.phase_step) / static_cast<double>(phase.plan().batches_per_epoch);
  Json line = {{"phase", state_.phase}, {"epoch", rounded(epochs)}, {"lr", rounded(report.lr)}};
  for (const auto& [name, sum] : state_.window.sums) {
    line[name] = rounded(sum / static_cast<double>(state_.window.steps));
  }
  state_.window = {};
  recorder_->write("train", state_.step, line);
  recorder_->scalar("train/images_per_second", throughput_.take(), state_.step);
}

void Trainer::save(const Phase& phase, const fs::path& folder) {
  const std::string& data = phase.plan().config.data;
  recorder_->sync();
  state_.metrics_lines = recorder_->lines();
  const Json config = {{"model", model_->config()},
                       {"data", data},
                       {"preprocess", to_json(phase.plan().config.preprocess)},
                       {"classes", datasets_.get(data, "train")->info().classes},
                       {"run", to_json(config_)}};
  save_checkpoint(folder, {config, to_json(state_), state_of(*model_), phase.optimizer().state()});
}

void Trainer::save_step(const Phase& phase) {
  result_.checkpoint = folder_->step_checkpoint(state_.step);
  save(phase, result_.checkpoint);
  folder_->keep_last(config_.keep_checkpoints);
}

}  // namespace moesaic
