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
#include "moesaic/report/runs.h"
#include "moesaic/report/runs_report.h"
#include "moesaic/report/samples.h"
#include "moesaic/report/sweep_report.h"
#include "moesaic/train/run_data.h"
#include "report_text.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

/// Returns the seconds that earlier, interrupted calls spent on an experiment; an unreadable file
/// counts as 0 instead of failing it.
double seconds_before(const fs::path& file) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return 0.0;
  const auto json = find_json(read_text(file, kMaxDocumentBytes, "a time")).value_or(nullptr);
  const auto seconds = json.is_object() ? json.value("seconds", nlohmann::ordered_json()) : json;
  if (seconds.is_number() && seconds >= 0.0) return seconds.get<double>();
  log_warning("{}: damaged; the time of earlier calls is left out", file.string());
  return 0.0;
}

}  // namespace

fs::path default_output(const Experiment& experiment) {
  const bool quick = experiment.scale == Scale::quick;
  return fs::path("checkpoints") / (quick ? experiment.name + "-quick" : experiment.name);
}

namespace {

/// What an experiment leaves in its folder.
struct Report {
  std::string markdown, summary;
  std::vector<Figure> figures;
};

/// Removes the paper's values at quick scale, since they hold for the paper's sizes.
void remove_paper_if_quick(const Experiment& experiment, std::vector<ResultRow>& rows) {
  for (ResultRow& row : rows) {
    if (experiment.scale == Scale::quick) row.paper = row.paper_std = std::nullopt;
  }
}

Report report_of_runs(const Experiment& experiment, const RunsConfig& config,
                      const std::vector<MeasuredRow>& rows, const Results& results,
                      const fs::path& out) {
  if (!config.sweep.is_given()) {
    return {runs_markdown(experiment, config, rows, results),
            runs_summary(experiment, config, rows, results, out),
            runs_figures(config, rows, results)};
  }
  const SweepPlan plan = sweep_plan(config, rows);
  const Results kept = kept_results(experiment, config.sweep);
  return {sweep_markdown(experiment, plan, results, kept),
          sweep_summary(experiment, plan, results, out, kept),
          {sweep_figure(plan, results)}};
}

Report report_of_samples(const Experiment& experiment, const ReproduceOptions& options) {
  const Figure figure = samples_figure(parse<SamplesConfig>(experiment.config), options);
  fs::create_directories(options.out);
  return {fmt::format("# {}\n\n{} Made by `{}`.\n\n![{}](figure.svg)\n", experiment.name,
                      experiment.description, table_command(experiment), experiment.description),
          experiment.name + "\n\n" +
              summary_line("figure", (options.out / "figure.svg").string() + ", figure.png") +
              summary_line("report", (options.out / "report.md").string()),
          {figure}};
}

void write_report(const fs::path& out, const Results& results, const Report& report) {
  write_atomic(out / "results.json", to_json(results).dump(2) + "\n");
  write_atomic(out / "report.md", report.markdown);
  for (size_t i = 0; i < report.figures.size(); ++i) {
    draw_figure(out, report.figures[i], figure_stem(i));
  }
}

/// Returns the settings of runs, nothing of samples. Throws Error (usage) for another kind.
std::optional<RunsConfig> runs_in(const Experiment& experiment) {
  if (experiment.kind == "runs") return parse<RunsConfig>(experiment.config);
  if (experiment.kind == "samples") return std::nullopt;
  const std::vector<std::string> kinds = {"runs", "samples"};
  fail_usage("{}: unknown kind of experiment '{}'; {}", experiment.config.at("kind").where(),
             experiment.kind, did_you_mean(experiment.kind, kinds));
}

}  // namespace

std::string plan_experiment(const Experiment& experiment) {
  const std::optional<RunsConfig> runs = runs_in(experiment);
  if (!runs) parse<SamplesConfig>(experiment.config);
  return fmt::format("experiment    {}, scale {}\n", experiment.name,
                     scale_name(experiment.scale)) +
         (runs ? plan_rows_of(*runs) : "draws images, trains nothing\n");
}

Reproduction reproduce(const Experiment& experiment, const ReproduceOptions& options) {
  const std::optional<RunsConfig> runs = runs_in(experiment);
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
  if (follows && !runs) return {};  // Process 0 draws alone.
  const fs::path elapsed = options.out / "elapsed.json";
  const double before = seconds_before(elapsed);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<MeasuredRow> rows;
  const bool complete = !runs || measure_rows(*runs, options, rows);
  // Without a signal of its own, another process had one.
  const int signal = complete ? 0 : std::max(options.stop->number(), SIGINT);
  if (follows) return {.signal = signal};
  const Report samples = runs ? Report{} : report_of_samples(experiment, options);
  const double seconds =
      before + std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  write_atomic(elapsed, nlohmann::json{{"seconds", seconds}}.dump() + "\n");
  if (!complete) return {.signal = signal};
  Reproduction done;
  done.results = {.experiment = experiment.name,
                  .scale = std::string(scale_name(experiment.scale))};
  if (runs) done.results.rows = runs_results(*runs, rows);
  remove_paper_if_quick(experiment, done.results.rows);
  done.results.seconds = std::round(10.0 * seconds) / 10.0;
  const Report report =
      runs ? report_of_runs(experiment, *runs, rows, done.results, options.out) : samples;
  write_report(options.out, done.results, report);
  done.summary = report.summary;
  return done;
}

}  // namespace moesaic
