// SPDX-License-Identifier: Apache-2.0
// Trains a network through the phases of a run, which may be stopped and resumed at any step.
#pragma once

#include <set>

#include "moesaic/base/progress.h"
#include "moesaic/base/random.h"
#include "moesaic/base/signal.h"
#include "moesaic/checkpoint/save.h"
#include "moesaic/train/expert_loads.h"
#include "moesaic/train/run_folder.h"
#include "moesaic/train/run_plan.h"

namespace moesaic {

/// Sums of the metrics since the last line of metrics.jsonl.
struct MetricWindow {
  int64_t steps = 0;
  std::map<std::string, double> sums;

  /// Adds the means over `count` steps; a report without a step counts as one.
  void add(const std::map<std::string, double>& means, int64_t count) {
    count = std::max<int64_t>(count, 1);
    steps += count;
    for (const auto& [name, mean] : means) sums[name] += mean * static_cast<double>(count);
  }
  /// Returns the means over these steps.
  std::map<std::string, double> means() const {
    std::map<std::string, double> means = sums;
    for (auto& [name, mean] : means) mean /= static_cast<double>(steps);
    return means;
  }
};
void describe(auto& f, MetricWindow& c) {
  f("steps", c.steps, "number of steps since the last line", at_least(0));
  f("sums", c.sums, "sum of each metric over these steps");
}

/// Progress of a run: a checkpoint's state.json. With weights and the phase's tensors it determines
/// every later bit; random numbers are functions of the run's seed and the position in the data.
struct TrainState {
  int64_t step = 0;
  std::string phase;  ///< Name of the phase; "" before its entry.
  int64_t phase_index = 0, phase_step = 0;
  bool is_phase_complete = false;
  Value phase_state;  ///< PhaseState::values of the phase.
  std::vector<std::string> evaluations_due;
  std::optional<double> best_value;
  int64_t best_step = 0;
  MetricWindow window;
  int64_t metrics_lines = 0;
  std::string computed_with;  ///< What determines rounding: threads and instructions, or "cuda".

  /// Returns the state at the start of the next phase.
  TrainState next_phase() const {
    return {.step = step,
            .phase_index = phase_index + 1,
            .metrics_lines = metrics_lines,
            .computed_with = computed_with};
  }
};
void describe(auto& f, TrainState& c) {
  f("step", c.step, "number of steps made in the run", required, at_least(0));
  f("phase", c.phase, "name of the current phase", required);
  f("phase_index", c.phase_index, "index of the current phase, from 0", required, at_least(0));
  f("phase_step", c.phase_step, "number of steps made in the phase", required, at_least(0));
  f("phase_complete", c.is_phase_complete,
    "end of the phase reached, so that the next one follows");
  f("phase_state", c.phase_state, "state of the phase needed to resume it");
  f("evaluations_due", c.evaluations_due,
    "splits on which the network after the last step is still to be evaluated");
  f("best_value", c.best_value, "best value of best_metric in the last phase");
  f("best_step", c.best_step, "step of the best value", at_least(0));
  f("window", c.window, "metrics not yet written as a line");
  f("metrics_lines", c.metrics_lines, "number of lines written to metrics.jsonl", at_least(0));
  f("computed_with", c.computed_with,
    "compute threads and processor instructions, or cuda, which determine how sums are rounded");
}

/// Options of a Trainer.
struct TrainerOptions {
  /// Folder of the run; empty means that the run stays in memory: nothing is written, drawn or
  /// evaluated.
  fs::path out = {};
  bool resume = false;               ///< Resumes from the folder's newest complete checkpoint.
  std::string device = "cpu";        ///< "cpu" or "cuda".
  const StopSignal* stop = nullptr;  ///< Polled after each step and in evaluations.
  bool show_progress = true;         ///< Draws a progress bar on standard error.
  DatasetOpener open = {};
  /// Processes that make the run together; process 0 writes its folder. Null: this one is alone.
  std::shared_ptr<const ProcessMesh> processes = {};
  /// Called before each step and after the last one, with the number of steps made so far; false
  /// ends the run. Where checkpoints are saved, the network may only be read.
  std::function<bool(Model& model, int64_t step)> on_step = {};
  /// Called at the end of each phase, with the number of steps made so far.
  std::function<void(Model& model, const std::string& phase, int64_t step)> on_phase_end = {};
};

/// How a run ended.
struct TrainResult {
  int signal = 0;                        ///< Signal that stopped the run; 0 means none.
  bool is_complete = true;               ///< False where a signal or `on_step` ended the run.
  int64_t steps = 0;                     ///< Steps since the start of the run.
  fs::path checkpoint;                   ///< Last one written or resumed from.
  std::optional<Evaluation> evaluation;  ///< Last evaluation of the run.
  fs::path best;                         ///< Best checkpoint of a completed last phase; "" without.
  std::string best_value;                ///< Metric and time of `best`, for messages.
};

/// Runs the phases of a configuration. The same seed gives the same bits on one machine and build,
/// for any number of loader threads and resumed at any step.
class Trainer {
 public:
  /// Checks everything that can be checked before the first step, then creates the run's folder.
  /// Throws Error: usage for a config that does not fit its model or data, a folder in use without
  /// `resume`, a config that changed since the run started; failure for missing or damaged files.
  Trainer(RunConfig config, TrainerOptions options);

  /// Runs the remaining phases; returns at once for a complete run. Throws Error where values of a
  /// phase are not finite; the last good checkpoint stays.
  TrainResult run();

  /// Returns the network.
  const std::shared_ptr<Model>& model() const { return model_; }
  /// Returns the resolved settings.
  const RunConfig& config() const { return config_; }

 private:
  /// A finished step, with the state after it.
  struct StepResult {
    StepReport report;
    int64_t step, phase_step;
    bool is_last_of_phase;
  };

  /// A checkpoint that is written during training.
  struct PendingSave {
    fs::path folder;
    int64_t step = 0;
  };

  /// The network at the end of a phase of a run in memory.
  struct PhaseSnapshot {
    Json model;
    TensorMap tensors;
    std::vector<std::string> classes;
  };

  void train(Phase& phase);
  StepResult step(Phase& phase);
  /// Reads the metrics of the last step, if they are not, and records it.
  void flush_metrics(const Phase& phase);
  std::unique_ptr<Phase> enter_phase();
  void leave_phase(const Phase& phase);
  void prepare_network();
  std::shared_ptr<Model> network_after(const std::string& phase) const;
  void prune(const PrunePhaseConfig& config);
  bool is_earlier_phase(const std::string& name) const;
  /// Returns a split of the phase's data as the phase's input_ takes it.
  std::shared_ptr<const Dataset> data(const std::string& split);
  /// Returns what is known of the phase's training data.
  const DatasetInfo& data_info() { return datasets_.get(plan().config.data, "train")->info(); }
  /// Returns the splits of the phase's data that it is evaluated on.
  std::vector<std::string> evaluation_splits() const {
    return datasets_.evaluation_splits(plan().config.data);
  }
  /// Evaluates on the splits that are due; ends early where the run is stopped.
  void evaluate_due(Phase& phase);
  void record_evaluation(const Phase& phase, const std::string& split,
                         const Evaluation& evaluation);
  void record(const StepResult& made);
  /// Returns the splits to evaluate on after the last `steps` steps.
  std::vector<std::string> evaluations_after(const Phase& phase, int64_t steps);
  /// Throws the error that is being handled as one of this step.
  [[noreturn]] void fail_step(const Phase& phase, int64_t step);
  [[noreturn]] void fail_at(int64_t step, const std::string& what);
  [[noreturn]] void fail_diverged(const Phase& phase, int64_t step, const std::string& what);
  Evaluation evaluate_on(const Phase& phase, const std::string& split);
  /// Starts to copy and write the state, once the save before is written; waits for the copy unless
  /// the phase tells before its next step.
  void save(const Phase& phase, const fs::path& folder);
  void save_step(const Phase& phase) { save(phase, folder_->step_checkpoint(state_.step)); }
  /// Records a save that has been written, if one has.
  void record_save(const std::optional<SaveTimes>& times);
  void restore();
  void restore(Phase& phase);
  void open_recorder();
  /// Returns the tag of the present phase's curves in TensorBoard.
  std::string tag_of(const std::string& what) const { return what + "/" + state_.phase; }
  /// Returns the seed of what happens on entry of the phase, a function of run, phase and purpose.
  uint64_t entry_seed(std::string_view purpose) const {
    return mix64(phase_seed(config_.seed, state_.phase_index) ^ stream_id(purpose));
  }
  const PhasePlan& plan() const { return plan_[static_cast<size_t>(state_.phase_index)]; }
  bool is_in_memory() const { return options_.out.empty(); }
  bool is_complete() const { return state_.phase_index == static_cast<int64_t>(plan_.size()); }
  bool is_in_last_phase() const { return state_.phase_index + 1 == std::ssize(plan_); }
  /// Returns whether this process writes the run's folder.
  bool is_rank_zero() const;
  /// Waits until no process writes a checkpoint: all of them call it together.
  void wait_for_writers();
  /// Waits for the save that goes on, if one does, and records it.
  void finish_save() {
    wait_for_writers();
    record_save(saves_.wait());
  }
  /// Returns the signal that this process got, 0 without.
  int local_signal() const { return options_.stop == nullptr ? 0 : options_.stop->number(); }
  /// Agrees with the other processes on result_.signal and on what the phase's last step met.
  void poll(Phase& phase) {
    result_.signal = phase.sync_step(local_signal(), options_.processes.get());
  }
  /// Throws Error (usage) unless the processes can share the run, and make the same one.
  void check_processes(const Model& shape);
  /// Compares the data with those that the run was begun with. Throws Error (usage) for a
  /// difference, unless such are accepted.
  void check_data(const std::optional<RunData>& started);
  /// Returns false where a signal or `on_step` ended the run.
  bool should_continue();

  RunConfig config_;
  TrainerOptions options_;
  DatasetCache datasets_;
  std::shared_ptr<Model> model_;
  std::vector<PhasePlan> plan_;
  std::optional<RunFolder> folder_;
  RunData data_;                              ///< Of a run that has a folder.
  std::map<std::string, std::string> moved_;  ///< Where data were when the run began, by name.
  std::set<std::string> changed_;  ///< Data whose training split is not that of the run's start.
  std::optional<MetricsWriter> recorder_;
  std::optional<Progress> progress_;
  Throughput throughput_;
  TrainState state_;
  /// Last step, whose metrics are read while the next step runs, so that a device never waits.
  std::optional<StepResult> pending_metrics_;
  TensorMap resumed_tensors_;
  /// Snapshots that later phases of a run in memory need, by phase.
  std::map<std::string, PhaseSnapshot> phase_snapshots_;
  std::optional<InputSpec> input_;    ///< Resolved when the phase begins.
  std::vector<std::string> classes_;  ///< Names of the network's outputs; empty: unknown.
  bool has_warned_of_best_ = false;
  StarvedExpertDetector starved_{config_.starved_expert_share, config_.starved_expert_steps};
  TrainResult result_;
  PendingSave pending_save_;
  AsyncSave saves_;  ///< Writes to folder_, so it ends before that.
};

}  // namespace moesaic
