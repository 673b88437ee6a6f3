// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"

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
};
template <class Fields>
void describe(Fields& f, MetricWindow& c) {
  f("steps", c.steps, "steps since the last line", at_least(0));
  f("sums", c.sums, "sum of each metric over them");
}

/// Progress of a run: a checkpoint's state.json. With weights and the phase's tensors it determines
/// every later bit; random numbers are functions of the run's seed and the position in the data.
struct TrainState {
  int64_t step = 0;
  std::string phase;  ///< Name of the phase; "" before its entry.
  int64_t phase_index = 0, phase_step = 0;
  bool phase_complete = false;
  Value phase_state;  ///< PhaseState::values of the phase.
  std::vector<std::string> evaluations_due;
  std::optional<double> best_value;
  int64_t best_step = 0;
  MetricWindow window;
  int64_t metrics_lines = 0;

  /// Returns the state at the start of the next phase.
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
  f("step", c.step, "steps made in the run", required, at_least(0));
  f("phase", c.phase, "name of the phase that the run has come to", required);
  f("phase_index", c.phase_index, "place of the phase in the list, 0-based", required, at_least(0));
  f("phase_step", c.phase_step, "steps made in the phase", required, at_least(0));
  f("phase_complete", c.phase_complete, "whether the phase is done, so that the next one follows");
  f("phase_state", c.phase_state, "what the phase itself needs to go on");
  f("evaluations_due", c.evaluations_due,
    "splits on which the network after the last step is still to be measured");
  f("best_value", c.best_value, "best value of the metric that `best` follows, in the last phase");
  f("best_step", c.best_step, "step at which that was measured", at_least(0));
  f("window", c.window, "metrics that wait for their line");
  f("metrics_lines", c.metrics_lines, "lines of metrics.jsonl that were written", at_least(0));
}

}  // namespace moesaic
