// SPDX-License-Identifier: Apache-2.0
// Trains a network through the phases of a run, and survives being stopped at any moment.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/base/progress.h"
#include "moesaic/base/signal.h"
#include "moesaic/models/model.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/evaluate.h"
#include "moesaic/train/phase.h"
#include "moesaic/train/recorder.h"
#include "moesaic/train/run_config.h"
#include "moesaic/train/run_folder.h"
#include "moesaic/train/run_plan.h"
#include "moesaic/train/train_state.h"

namespace moesaic {

struct TrainerOptions {
  std::filesystem::path out;         ///< the run's folder
  bool resume = false;               ///< go on from its newest whole checkpoint
  std::string device = "cpu";        ///< cpu | cuda
  const StopSignal* stop = nullptr;  ///< polled after each step and in evaluations
  bool progress = true;              ///< draw a progress bar on standard error
  DatasetOpener open = open_dataset;
};

struct TrainResult {
  int signal = 0;                        ///< the one that stopped the run; 0: it is complete
  int64_t steps = 0;                     ///< updates made since the run began
  std::filesystem::path checkpoint;      ///< the last one written or resumed from
  std::optional<Evaluation> evaluation;  ///< the last one made
};

/// Same seed, same bits: twice, with any number of loader threads, and resumed at any step.
class Trainer {
 public:
  /// Checks everything that can be checked before the first step, then makes the run's folder.
  /// Throws Error: usage for a config that does not fit its model or data, a folder in use without
  /// `resume`, a config that changed since the run began; failure for missing or damaged files.
  Trainer(RunConfig config, TrainerOptions options);

  /// Runs the phases that are left. A run that is complete returns at once. Throws Error where the
  /// loss or the gradients are no longer finite; the last good checkpoint stays.
  TrainResult run();

  Model& model() { return *model_; }

 private:
  void train(Phase& phase);
  StepReport step(Phase& phase);
  std::unique_ptr<Phase> enter_phase();
  void leave_phase(Phase& phase);
  void prepare_network(const PhasePlan& plan);
  void evaluate_phase(const Phase& phase);
  void record(const Phase& phase, const StepReport& report);
  bool evaluation_due(const Phase& phase) const;
  bool checkpoint_due(const Phase& phase) const;
  void save(const Phase& phase, const std::filesystem::path& folder);
  void save_step(const Phase& phase);
  void restore(const std::filesystem::path& checkpoint);
  bool complete() const { return state_.phase_index == static_cast<int64_t>(plan_.size()); }
  bool in_last_phase() const {
    return state_.phase_index + 1 == static_cast<int64_t>(plan_.size());
  }
  bool stopped() const { return options_.stop != nullptr && options_.stop->requested(); }

  RunConfig config_;
  TrainerOptions options_;
  Datasets datasets_;
  std::shared_ptr<Model> model_;
  std::vector<PhasePlan> plan_;
  std::optional<RunFolder> folder_;
  std::optional<Recorder> recorder_;
  std::optional<Progress> progress_;
  Throughput throughput_;
  TrainState state_;
  TensorMap resumed_optimizer_;
  TrainResult result_;
};

/// Throws Error (usage) unless this build can train there.
void check_device(const std::string& device);

}  // namespace moesaic
