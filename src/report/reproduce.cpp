// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/reproduce.h"

#include <chrono>
#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/config/schema.h"
#include "moesaic/report/sweep_report.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

/// Seconds spent on an experiment, those of earlier, interrupted calls included: kept in the output
/// folder.
class Stopwatch {
 public:
  explicit Stopwatch(fs::path file) : file_(std::move(file)) {
    std::error_code ignored;
    if (fs::exists(file_, ignored))
      before_ = nlohmann::json::parse(read_text(file_)).value("seconds", 0.0);
  }
  double save() const {
    const auto spent = std::chrono::steady_clock::now() - begin_;
    const double seconds = before_ + std::chrono::duration<double>(spent).count();
    write_atomic(file_, nlohmann::json{{"seconds", seconds}}.dump() + "\n");
    return seconds;
  }

 private:
  fs::path file_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double before_ = 0.0;
};

}  // namespace

fs::path default_output(const Experiment& experiment) {
  const bool quick = experiment.scale == Scale::quick;
  return fs::path("checkpoints") / (quick ? experiment.name + "-quick" : experiment.name);
}

// One kind of experiment so far; its parser refuses every other one by name.
Reproduction reproduce(const Experiment& experiment, const ReproduceOptions& options) {
  const auto config = parse<PruneSweepConfig>(experiment.config);
  const Stopwatch stopwatch(options.out / "elapsed.json");
  SweepOutcome outcome;
  const bool complete = run_prune_sweep(config, options, outcome);
  const double seconds = stopwatch.save();
  if (!complete) return {.signal = options.stop->number()};
  Reproduction done;
  done.results = {.experiment = experiment.name,
                  .scale = std::string(scale_name(experiment.scale)),
                  .rows = sweep_rows(outcome)};
  done.results.seconds = std::round(10.0 * seconds) / 10.0;
  write_atomic(options.out / "results.json", to_json(done.results).dump(2) + "\n");
  write_atomic(options.out / "report.md", sweep_markdown(experiment, outcome, done.results));
  draw_figure(options.out, sweep_figure(outcome));
  done.summary = sweep_summary(experiment, outcome, done.results, options.out);
  return done;
}

}  // namespace moesaic
