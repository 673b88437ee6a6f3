// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/reproduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <memory>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/process.h"
#include "moesaic/config/document.h"
#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"
#include "moesaic/ops/device.h"
#include "moesaic/parallel/processes.h"
#include "moesaic/report/paper.h"
#include "moesaic/report/prune_sweep.h"
#include "moesaic/report/runs.h"
#include "moesaic/report/runs_report.h"
#include "moesaic/report/samples.h"
#include "moesaic/report/sweep_report.h"
#include "moesaic/train/same_start.h"
#include "report_text.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

/// Seconds spent on an experiment, including earlier, interrupted calls, stored in the output
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
  /// Returns the stored seconds; an unreadable file counts as 0 instead of failing the experiment.
  double read_seconds() const {
    const std::string text = read_text(file_, kMaxDocumentBytes, "a time");
    const auto json = find_json(text).value_or(nullptr);
    const auto seconds = json.is_object() ? json.value("seconds", nlohmann::ordered_json()) : json;
    if (seconds.is_number() && seconds >= 0.0) return seconds.get<double>();
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

namespace {

/// Interface of a kind of experiment.
class Kind {
 public:
  virtual ~Kind() = default;
  /// Runs the experiment. Returns false if a signal stopped it.
  virtual bool run(const ReproduceOptions& options) = 0;
  /// Returns whether processes share it; otherwise process 0 makes it alone.
  virtual bool is_shared() const { return false; }
  /// Returns the plan as text.
  virtual std::string plan() const = 0;
  virtual std::vector<ResultRow> rows() const = 0;
  virtual std::string markdown(const Results& results) const = 0;
  virtual std::vector<Figure> figures(const Results& results) const = 0;
  virtual std::string summary(const Results& results, const fs::path& out) const = 0;
};

template <class Config>
class KindOf : public Kind {
 public:
  explicit KindOf(const Experiment& experiment)
      : experiment_(experiment), config_(parse<Config>(experiment.config)) {}

 protected:
  const Experiment& experiment_;
  Config config_;
};

class PruneSweepKind final : public KindOf<PruneSweepConfig> {
 public:
  using KindOf::KindOf;
  bool is_shared() const override { return true; }
  bool run(const ReproduceOptions& options) override {
    return run_prune_sweep(config_, options, outcome_);
  }
  std::string plan() const override { return plan_prune_sweep(config_); }
  std::vector<ResultRow> rows() const override {
    std::vector<ResultRow> rows = sweep_rows(outcome_);
    for (ResultRow& row : rows) beside_paper(row, config_.paper);
    return rows;
  }
  std::string markdown(const Results& results) const override {
    return sweep_markdown(experiment_, outcome_, results, kept());
  }
  std::vector<Figure> figures(const Results&) const override { return {sweep_figure(outcome_)}; }
  std::string summary(const Results& results, const fs::path& out) const override {
    return sweep_summary(experiment_, outcome_, results, out, kept());
  }

 private:
  /// Returns the figures that were kept, if this run's networks are made as theirs were.
  std::vector<ResultRow> kept() const {
    if (experiment_.scale != Scale::paper || config_.kept.is_null()) return {};
    for (const char* key : {"train", "finetuned", "recover", "whole", "replace", "images"}) {
      const Value* setting = experiment_.config.find(key);
      if (setting != nullptr && !arguments_in(*setting).empty()) return {};
    }
    return measured_rows(config_.kept);
  }

  SweepOutcome outcome_;
};

/// Removes the paper's values at quick scale, since they hold for the paper's sizes.
std::vector<ResultRow> without_paper_if_quick(const Experiment& experiment,
                                              std::vector<ResultRow> rows) {
  for (ResultRow& row : rows) {
    if (experiment.scale == Scale::quick) row.paper = row.paper_std = std::nullopt;
  }
  return rows;
}

class RunsKind final : public KindOf<RunsConfig> {
 public:
  using KindOf::KindOf;
  bool run(const ReproduceOptions& options) override {
    return measure_rows(config_, options, rows_);
  }
  bool is_shared() const override { return true; }
  std::string plan() const override { return plan_rows_of(config_); }
  std::vector<ResultRow> rows() const override { return runs_results(config_, rows_); }
  std::string markdown(const Results& results) const override {
    return runs_markdown(experiment_, config_, rows_, results);
  }
  std::vector<Figure> figures(const Results& results) const override {
    return runs_figures(config_, rows_, results);
  }
  std::string summary(const Results& results, const fs::path& out) const override {
    return runs_summary(experiment_, config_, rows_, results, out);
  }

 private:
  std::vector<MeasuredRow> rows_;
};

class SamplesKind final : public KindOf<SamplesConfig> {
 public:
  using KindOf::KindOf;
  bool run(const ReproduceOptions& options) override {
    figure_ = samples_figure(config_, options);
    fs::create_directories(options.out);
    return true;
  }
  std::string plan() const override { return "draws images, trains nothing\n"; }
  std::vector<ResultRow> rows() const override { return {}; }
  std::string markdown(const Results&) const override {
    return fmt::format("# {}\n\n{} Made by `{}`.\n\n![{}](figure.svg)\n", experiment_.name,
                       experiment_.description, table_command(experiment_),
                       experiment_.description);
  }
  std::vector<Figure> figures(const Results&) const override { return {figure_}; }
  std::string summary(const Results&, const fs::path& out) const override {
    return experiment_.name + "\n\n" +
           summary_line("figure", (out / "figure.svg").string() + ", figure.png") +
           summary_line("report", (out / "report.md").string());
  }

 private:
  Figure figure_;
};

std::unique_ptr<Kind> kind_of(const Experiment& experiment) {
  if (experiment.kind == "prune-sweep") return std::make_unique<PruneSweepKind>(experiment);
  if (experiment.kind == "runs") return std::make_unique<RunsKind>(experiment);
  if (experiment.kind == "samples") return std::make_unique<SamplesKind>(experiment);
  const Value& kind = experiment.config.at("kind");
  const std::vector<std::string> kinds = {"prune-sweep", "runs", "samples"};
  fail_usage("{}: unknown kind of experiment '{}'; {}", kind.where(), experiment.kind,
             did_you_mean(experiment.kind, kinds));
}

}  // namespace

std::string plan_experiment(const Experiment& experiment) {
  return fmt::format("experiment    {}, scale {}\n", experiment.name,
                     scale_name(experiment.scale)) +
         kind_of(experiment)->plan();
}

Reproduction reproduce(const Experiment& experiment, const ReproduceOptions& options) {
  const std::unique_ptr<Kind> kind = kind_of(experiment);
  if (find_program("gnuplot").empty()) {
    fail("gnuplot: no such program on PATH; the experiment's figure is drawn by it");
  }
  check_device(options.device);
  const bool follows = options.processes && !options.processes->leads();
  if (options.processes) {
    check_same_build(*options.processes);
    check_same_settings(*options.processes, "experiment", experiment.config.to_json());
    options.processes->check_same("folder", options.out.string());
  }
  if (follows && !kind->is_shared()) return {};
  const Stopwatch stopwatch(options.out / "elapsed.json");
  const bool complete = kind->run(options);
  if (follows) return {.signal = complete ? 0 : std::max(options.stop->number(), SIGINT)};
  const double seconds = stopwatch.save();
  // Without a signal of its own, another process had one.
  if (!complete) return {.signal = std::max(options.stop->number(), SIGINT)};
  Reproduction done;
  done.results = {.experiment = experiment.name,
                  .scale = std::string(scale_name(experiment.scale)),
                  .rows = without_paper_if_quick(experiment, kind->rows())};
  done.results.seconds = std::round(10.0 * seconds) / 10.0;
  write_atomic(options.out / "results.json", to_json(done.results).dump(2) + "\n");
  write_atomic(options.out / "report.md", kind->markdown(done.results));
  const std::vector<Figure> figures = kind->figures(done.results);
  for (size_t i = 0; i < figures.size(); ++i) {
    draw_figure(options.out, figures[i], figure_stem(i));
  }
  done.summary = kind->summary(done.results, options.out);
  return done;
}

}  // namespace moesaic
