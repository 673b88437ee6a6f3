// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "experiment_run.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/process.h"
#include "moesaic/base/registry.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/config/document.h"
#include "moesaic/config/rules.h"
#include "moesaic/ops/device.h"
#include "moesaic/parallel/process_mesh.h"
#include "moesaic/train/distributed_run.h"

namespace moesaic {
namespace {

Registry<fs::path> shipped_experiments() {
  std::map<std::string, fs::path> found;
  for (const fs::path& file : model_files("experiments")) {
    const Document document = Document::from_file(file);
    found[document.root().at("name").as_string("name")] = file;
  }
  return {"experiment", std::move(found)};
}

fs::path find_experiment(const std::string& name_or_file) {
  if (name_or_file.ends_with(".json")) {
    check_input_file(name_or_file);
    return name_or_file;
  }
  return shipped_experiments().at(name_or_file);
}

/// Throws Error (usage) for the recipe of a run.
void check_is_no_recipe(const Value& root, const std::string& file) {
  if (!root.is_object() || root.find("phases") == nullptr || root.find("kind") != nullptr) return;
  fail_usage("reproduce: {}: a recipe, not an experiment; train it by: moesaic train {}", file,
             shell_quoted(file));
}

void shrink(Document& document) {
  const Value root = document.root();  // The root is a copy, since set() replaces it.
  const Value* quick = root.find("quick");
  if (quick == nullptr || quick->is_null()) {
    fail_usage("{}: the experiment has no quick scale; choose --scale paper", root.where());
  }
  for (const Value::Member& setting : quick->members("quick")) {
    document.set(setting.key, setting.value);
  }
}

/// Reads the former kinds of experiments as what they are now.
void rename_kind(Document& document) {
  const Value root = document.root();
  const Value* kind = root.find("kind");
  if (kind == nullptr || kind->kind() != Value::Kind::string) return;
  if (kind->as_string() == "samples") {
    log_warning("{}: the kind 'samples' is called 'image_grid' now", kind->where());
    document.set("kind", Value::from_json("image_grid", kind->where()));
  }
  if (kind->as_string() != "prune-sweep") return;
  log_warning(
      "{}: the kind 'prune-sweep' is 'runs' now, with \"num_runs\": 1 where it has no number",
      kind->where());
  document.set("kind", Value::from_json("runs", kind->where()));
  if (root.find("num_runs") == nullptr && root.find("runs") == nullptr) {
    document.set("num_runs", Value::from_json(1, kind->where()));
  }
}

/// Throws Error (usage) for a name that cannot be that of a folder; '/' parts the family from it.
void check_name(const Value& value) {
  const std::string name = value.as_string("name");
  const size_t slash = std::min(name.find('/'), name.size());
  const bool plain = is_portable_name(name.substr(0, slash)) &&
                     (slash == name.size() || is_portable_name(name.substr(slash + 1)));
  if (plain) return;
  fail_usage("{}: name {} may hold letters, digits, '-', '_' and '.', and one '/' between them",
             value.where(), printable(name));
}

/// Returns the seconds that earlier, interrupted calls spent on an experiment; an unreadable file
/// counts as 0 instead of failing it.
double seconds_before(const fs::path& file) {
  if (!fs::is_regular_file(status_of(file))) return 0.0;
  const auto json = find_json(read_text(file, kMaxDocumentBytes, "a time")).value_or(nullptr);
  const auto seconds = json.is_object() ? json.value("seconds", Json()) : json;
  if (seconds.is_number() && seconds >= 0.0) return seconds.get<double>();
  log_warning("{}: corrupt; the time of earlier calls is left out", file.string());
  return 0.0;
}

/// Returns the results of an earlier, longer series of runs; without rows where the networks of
/// those were made in another way than this experiment's.
Results baseline_results(const Experiment& experiment, const SweepConfig& config) {
  if (experiment.scale != Scale::paper || config.baseline_results.is_null()) return {};
  for (const char* key : {"train", "set", "finetuned", "recover", "exclude_blocks", "whole",
                          "replace", "num_calibration_images", "images"}) {
    const Value* setting = experiment.config.find(key);
    if (setting != nullptr && !arguments_in(*setting).empty()) return {};
  }
  return {.rows = measured_rows(config.baseline_results)};
}

Report report_of_samples(const Experiment& experiment, const ReproduceOptions& options) {
  const Figure figure = image_grid_figure(parse<ImageGridConfig>(experiment.config), options);
  // Its settings may change: it is made in a second.
  const LockFile lock = hold_folder(options.out, {{"experiment", experiment.name}});
  return {fmt::format("# {}\n\n{} Made by `{}`.\n\n![{}](figure.svg)\n", experiment.name,
                      experiment.description, experiment.command(), experiment.description),
          experiment.name + "\n\n" +
              summary_line("figure", (options.out / "figure.svg").string() + ", figure.png") +
              summary_line("report", (options.out / "report.md").string()),
          {figure}};
}

/// Returns the settings of runs, nothing of an image grid. Throws Error (usage) for another kind.
std::optional<RunsConfig> runs_in(const Experiment& experiment) {
  if (experiment.kind == "runs") return parse<RunsConfig>(experiment.config);
  if (experiment.kind == "image_grid") return std::nullopt;
  const std::vector<std::string> kinds = {"runs", "image_grid"};
  fail_usage("{}: unknown kind of experiment '{}'; {}", experiment.config.at("kind").where(),
             experiment.kind, did_you_mean(experiment.kind, kinds));
}

}  // namespace

std::string_view scale_name(Scale scale) {
  return scale == Scale::quick ? "quick" : "paper";
}

std::string Experiment::command() const {
  std::string command = "moesaic reproduce " + name;
  for (const std::string& assignment : overrides) command += " " + shell_quoted(assignment);
  return command + fmt::format(" --scale {}", scale_name(scale));
}

std::string Experiment::scale_text() const {
  if (scale == Scale::paper) return "Scale: paper.";
  return "Scale: **quick**. Sizes are smaller than the paper's: do not compare the results.";
}

std::vector<std::string> experiment_names() {
  return shipped_experiments().names();
}

Experiment load_experiment(const std::string& name_or_file, Scale scale,
                           const std::vector<std::string>& overrides) {
  Document document = Document::from_file(find_experiment(name_or_file));
  constexpr std::string_view kQuick = "quick.";
  for (const std::string& assignment : overrides) {
    if (!assignment.starts_with(kQuick)) continue;
    fail_usage("argument '{}': overrides come after the quick scale; give '{}'", assignment,
               assignment.substr(kQuick.size()));
  }
  check_is_no_recipe(document.root(), name_or_file);
  rename_kind(document);
  if (scale == Scale::quick) shrink(document);
  for (const std::string& assignment : overrides) document.set(assignment);
  const Value& root = document.root();
  check_name(root.at("name"));
  return {.name = root.at("name").as_string("name"),
          .kind = root.at("kind").as_string("kind"),
          .description = root.at("description").as_string("description"),
          .scale = scale,
          .overrides = overrides,
          .config = root};
}

fs::path default_output(const Experiment& experiment) {
  const bool quick = experiment.scale == Scale::quick;
  return fs::path("checkpoints") / (quick ? experiment.name + "-quick" : experiment.name);
}

std::string plan_experiment(const Experiment& experiment) {
  const std::optional<RunsConfig> runs = runs_in(experiment);
  if (!runs) parse<ImageGridConfig>(experiment.config);
  return fmt::format("experiment    {}, scale {}\n", experiment.name,
                     scale_name(experiment.scale)) +
         (runs ? plan_rows_of(*runs) : "draws images, trains nothing\n");
}

Reproduction reproduce(const Experiment& experiment, const ReproduceOptions& options) {
  const std::optional<RunsConfig> runs = runs_in(experiment);
  if (find_program("gnuplot").empty()) {
    fail("gnuplot: no such program on PATH; it draws the experiment's figure");
  }
  check_device(options.device);
  const bool follows = options.processes && !options.processes->is_rank_zero();
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
  int64_t signal_of_all = complete ? 0 : options.stop->number();
  // Runs end on all processes together; what process 0 measures of the finished rows, on it alone.
  const bool together = !complete && rows.empty();
  if (together && options.processes)
    signal_of_all = options.processes->all_reduce_max(signal_of_all);
  const int signal = static_cast<int>(signal_of_all);
  if (follows) return {.signal = signal};
  Report report = runs ? Report{} : report_of_samples(experiment, options);
  const double seconds =
      before + std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  write_atomic(elapsed, nlohmann::json{{"seconds", seconds}}.dump() + "\n");
  if (!complete) return {.signal = signal};
  Results results{.experiment = experiment.name,
                  .scale = std::string(scale_name(experiment.scale)),
                  .seconds = std::round(10.0 * seconds) / 10.0};
  if (runs) {
    results.rows = runs_results(*runs, rows);
    for (ResultRow& row : results.rows) {  // The paper's values hold for the paper's sizes.
      if (experiment.scale != Scale::paper) row.paper = {};
    }
  }
  // First: figures and the report may fail, and can be made again.
  write_atomic(options.out / "results.json", to_json(results).dump(2) + "\n");
  if (runs) {
    report = runs->sweep.is_given()
                 ? sweep_report(experiment, sweep_plan(*runs, rows), results, options.out,
                                baseline_results(experiment, runs->sweep))
                 : runs_report(experiment, *runs, rows, results, options.out);
  }
  write_atomic(options.out / "report.md", report.markdown);
  for (size_t i = 0; i < report.figures.size(); ++i) {
    draw_figure(options.out, report.figures[i], figure_stem(i));
  }
  return {.results = std::move(results), .summary = std::move(report.summary)};
}

}  // namespace moesaic
