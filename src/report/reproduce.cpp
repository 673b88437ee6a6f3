// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/reproduce.h"

#include <chrono>
#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"
#include "moesaic/base/process.h"
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
    if (fs::is_regular_file(file_, ignored)) before_ = read_seconds();
  }
  double save() const {
    const auto spent = std::chrono::steady_clock::now() - begin_;
    const double seconds = before_ + std::chrono::duration<double>(spent).count();
    write_atomic(file_, nlohmann::json{{"seconds", seconds}}.dump() + "\n");
    return seconds;
  }

 private:
  /// A time that cannot be read is not worth an experiment.
  double read_seconds() const {
    const auto json = nlohmann::json::parse(read_text(file_), nullptr, /*allow_exceptions=*/false);
    const auto seconds = json.is_object() ? json.find("seconds") : json.end();
    const double found =
        seconds != json.end() && seconds->is_number() ? seconds->get<double>() : -1.0;
    if (found >= 0.0) return found;
    log_warning("{}: damaged; the time of earlier calls is left out", file_.string());
    return 0.0;
  }

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
  if (find_program("gnuplot").empty()) {
    fail("gnuplot: no such program on PATH; the experiment's figure is drawn by it");
  }
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
