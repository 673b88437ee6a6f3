// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "moesaic/config/schema.h"

namespace moesaic {

/// Sums of the metrics since the last line that was written.
struct MetricWindow {
  int64_t steps = 0;
  std::map<std::string, double> sums;

  void add(const std::map<std::string, double>& metrics) {
    ++steps;
    for (const auto& [name, value] : metrics) sums[name] += value;
  }
};
template <class Fields>
void describe(Fields& f, MetricWindow& c) {
  f("steps", c.steps, "updates since the last line", at_least(0));
  f("sums", c.sums, "of each metric over them");
}

/// Where a run is: a checkpoint's state.json. With weights and optimizer tensors it decides every
/// later bit; random numbers are functions of the run's seed and of the place in the data.
struct TrainState {
  int64_t step = 0;
  std::string phase;  ///< "" before its entry
  int64_t phase_index = 0, phase_step = 0;
  bool phase_complete = false;
  int64_t epoch = 0, batch = 0;
  int64_t optimizer_steps = 0;
  std::optional<double> min_loss;
  bool phase_stopped = false;
  bool evaluation_due = false;
  std::optional<double> best_accuracy;
  int64_t best_step = 0;
  MetricWindow window;
  int64_t metrics_lines = 0;

  /// Where the next phase begins.
  TrainState next_phase() const {
    TrainState next;
    next.step = step;
    next.phase_index = phase_index + 1;
    next.metrics_lines = metrics_lines;
    return next;
  }
};
template <class Fields>
void describe(Fields& f, TrainState& c) {
  f("step", c.step, "updates made in the run", required, at_least(0));
  f("phase", c.phase, "phase that they have come to", required);
  f("phase_index", c.phase_index, "its place in the list", required, at_least(0));
  f("phase_step", c.phase_step, "updates made in it", required, at_least(0));
  f("phase_complete", c.phase_complete, "it is done, the next phase follows");
  f("epoch", c.epoch, "of the next batch, from 0 in each phase", at_least(0));
  f("batch", c.batch, "place of the next batch in its epoch", at_least(0));
  f("optimizer_steps", c.optimizer_steps, "updates made by the phase's optimizer", at_least(0));
  f("min_loss", c.min_loss, "of the phase's steps so far, where one may end it");
  f("phase_stopped", c.phase_stopped, "a step's loss has ended the phase");
  f("evaluation_due", c.evaluation_due, "the evaluation after the last update was cut short");
  f("best_accuracy", c.best_accuracy, "of the last phase's evaluations so far, %");
  f("best_step", c.best_step, "when that was measured", at_least(0));
  f("window", c.window, "metrics that wait for their line");
  f("metrics_lines", c.metrics_lines, "lines of metrics.jsonl that were written", at_least(0));
}

}  // namespace moesaic
