// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "experiment_run.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/config/document.h"
#include "moesaic/train/run_plan.h"

namespace moesaic {
namespace {

constexpr size_t kMaxRows = 10000;

PlannedRow with_point(PlannedRow row, const RowConfig& point, const std::string& separator) {
  row.name += (row.name.empty() ? "" : separator) + point.name;
  if (!point.set.is_null()) row.sets.push_back(point.set);
  row.num_runs = point.num_runs.value_or(row.num_runs);
  row.phase_rows.insert(point.phase_rows.begin(), point.phase_rows.end());
  return row;
}

/// Returns what is wrong with the name of a row or, with sizes, of a curve that lacks one of them.
ConfigProblem row_problem(const std::vector<std::string>& rows, const std::string& row,
                          const std::vector<double>& sizes = {}) {
  for (const double x : sizes) {
    ConfigProblem problem = row_problem(rows, row_of_size(row, x));
    if (!problem.empty()) return problem;
  }
  if (!sizes.empty() || std::ranges::count(rows, row) > 0) return {};
  return {fmt::format("unknown row '{}'; {}", row, did_you_mean(row, rows)), {"ratios", "plots"}};
}

ConfigProblem grid_problem(const RunsConfig& config) {
  for (const char* key :
       {"exclude_blocks", "per_layer", "criteria", "replace", "num_calibration_images", "finetuned",
        "recover", "throughput", "export", "baseline_results"}) {
    if (config.source.find(key) == nullptr) continue;
    return {fmt::format("'{}' is for pruned networks; give 'keep' too", key), {key}};
  }
  size_t rows = 1;
  for (size_t i = 0; i < config.grid.size(); ++i) {
    if (config.grid[i].empty())
      return {fmt::format("grid.{} must have at least one point, found none", i), {"grid"}};
    rows = std::min(rows * config.grid[i].size(), kMaxRows + 1);
  }
  if (rows > kMaxRows) return {fmt::format("the grid has more than {} rows", kMaxRows), {"grid"}};
  if (!config.rows.empty() || !config.grid.empty()) return {};
  return {"one of 'rows', 'grid' and 'keep' must be given", {"rows", "grid"}};
}

/// Returns all rows. Refuses arguments of the command line that every row's own settings replace,
/// and warns of those that some rows' do.
std::vector<PlannedRow> checked_rows(const RunsConfig& config) {
  std::vector<PlannedRow> rows = planned_rows(config);
  std::map<std::string, std::vector<std::string>> lost;
  for (const PlannedRow& row : rows) {
    for (const std::string& argument : lost_arguments(config, row)) {
      lost[argument].push_back(row.name);
    }
  }
  for (const auto& [argument, names] : lost) {
    if (names.size() == rows.size()) {
      fail_usage(
          "{}: no effect, since every row ('{}') sets this itself; change the rows "
          "in a copy of the experiment",
          argument, names.front());
    }
    log_warning("{}: {} of {} rows set this themselves and keep theirs, the first is '{}'",
                argument, names.size(), rows.size(), names.front());
  }
  return rows;
}

/// Checks what an experiment says of rows, phases and metrics against those that its runs have.
class RunsCheck {
 public:
  RunsCheck(const RunsConfig& config, const PreparedRuns& runs) : config_(config) {
    for (const PreparedRow& prepared : runs.rows) {
      for (const MeasuredRow& row : prepared.result_rows) {
        names_.push_back(row.name);
        add(row.metrics, final_);
        add(row.snapshot_metrics, curves_);
      }
    }
  }

  /// Checks that some row has the phases after which is measured.
  void phases(const std::vector<std::string>& phases) const {
    for (const auto& [phase, unused] : config_.phase_metrics) {
      if (std::ranges::count(phases, phase) > 0) continue;
      fail_usage("{}: no row has a phase '{}'; {}",
                 where({"phase_metrics." + phase, "phase_metrics"}), phase,
                 did_you_mean(phase, phases));
    }
  }

  /// Checks the metrics of snapshots that become metrics of a run's end.
  void snapshots(const SnapshotConfig& config) const {
    for (const auto& [setting, names] :
         {std::pair("best", config.best), std::pair("converged", config.converged)}) {
      const std::string place = where({fmt::format("snapshots.{}", setting)});
      for (const std::string& name : names) {
        if (!known(curves_, name, place).is_table) continue;
        fail_usage(
            "{}: '{}' is a table, for which '{}' is not defined; name a metric that is a number",
            place, name, setting);
      }
    }
  }

  /// Checks that plots name rows, and measured metrics of the right kind.
  void plots() const {
    for (size_t i = 0; i < config_.plots.size(); ++i) {
      const PlotConfig& plot = config_.plots[i];
      for (const std::string& row : plot.rows) {
        const std::string problem = row_problem(names_, row).text;
        if (problem.empty()) continue;
        fail_usage("{}: {}", where({fmt::format("plots.{}.rows", i), "plots"}), problem);
      }
      const std::string place =
          where({fmt::format("plots.{}", i), "plots", "probes", "snapshots.probes", "snapshots"});
      const auto is_shown = [&](const FitConfig& fit) {
        return std::ranges::count(plot.metrics, fit.metric) > 0;
      };
      if (plot.kind == "power" && std::ranges::none_of(config_.fits, is_shown)) {
        fail_usage("{}: a plot of kind 'power' needs a metric of 'fits'", place);
      }
      const bool curves = plot.kind == "curves";
      for (const std::string& name : plot.metrics) {
        const bool table = known(curves ? curves_ : final_, name, place).is_table;
        if (curves || table == (plot.kind == "heatmap" || plot.kind == "stems")) continue;
        fail_usage("{}: a plot of kind '{}' shows {}, but '{}' is {}", place, plot.kind,
                   table ? "numbers" : "tables", name, table ? "a table" : "a number");
      }
    }
  }

  /// Checks what fits, ratios and the paper have values of.
  void values() {
    for (const FitConfig& fit : config_.fits) {
      known(final_, fit.metric, where({"fits"}));
      final_.push_back({fit.exponent(), "exponent of " + fit.metric});
    }
    std::set<std::pair<std::string, std::string>> ratios;
    for (const RatioConfig& ratio : config_.ratios) {
      known(final_, ratio.source_metric, where({"ratios"}));
      ratios.emplace(ratio.name, ratio.metric);
    }
    for (const auto& [row, metrics] : config_.paper) {
      for (const auto& [name, value] : metrics) {
        if (ratios.contains({row, name})) continue;
        const bool given = is_argument(config_.source, "probes");
        if (known(final_, name, given ? where({"probes"}) : value.where()).is_table) {
          paper_table(config_.paper, row, name);
        } else {
          paper_number(config_.paper, row, name);
        }
      }
    }
  }

 private:
  static void add(const std::vector<Metric>& metrics, std::vector<Metric>& all) {
    for (const Metric& metric : metrics) {
      if (find_metric(all, metric.name) == nullptr) all.push_back(metric);
    }
  }

  std::string where(const std::vector<std::string>& offending) const {
    return location_of(config_.source, offending);
  }

  static const Metric& known(const std::vector<Metric>& metrics, const std::string& name,
                             const std::string& place) {
    if (const Metric* found = find_metric(metrics, name)) return *found;
    std::vector<std::string> names;
    for (const Metric& metric : metrics) names.push_back(metric.name);
    fail_usage("{}: no row has the metric '{}'{}{}", place, name, names.empty() ? "" : "; ",
               did_you_mean(name, names));
  }

  const RunsConfig& config_;
  std::vector<std::string> names_;  ///< Rows of the results.
  std::vector<Metric> final_, curves_;
};

/// Plans the rows of a grid, and checks what is to be measured and drawn of them.
PreparedRuns prepare_grid(const RunsConfig& config, const ReproduceOptions& options,
                          DatasetCache& datasets) {
  Json runs = Json::object(), earlier = Json::object();
  PreparedRuns ready;
  std::vector<std::string> phases;
  for (const PlannedRow& row : checked_rows(config)) {
    const RunConfig run = config_of(config, row);
    runs[row.name] = to_json(run);
    if (!row.phase_rows.empty()) earlier[row.name] = row.phase_rows;
    for (const PhaseConfig& phase : run.phases) phases.push_back(phase.name);
    ready.rows.push_back(prepare_run(run, row, config, options.device, datasets));
  }
  const RunsCheck check(config, ready);
  check.phases(phases);
  check.plots();
  check.snapshots(config.snapshots.value_or(SnapshotConfig()));
  ready.settings = {
      {"experiment", config.name}, {"runs", std::move(runs)}, {"probes", config.probes}};
  if (!config.phase_metrics.empty()) ready.settings["after"] = config.phase_metrics;
  if (!earlier.empty()) ready.settings["earlier"] = std::move(earlier);
  if (config.snapshots) ready.settings["snapshots"] = to_json(*config.snapshots);
  return ready;
}

}  // namespace

Value settings_of(const RunsConfig& experiment, const PlannedRow& row) {
  Document document(experiment.train);
  for (const Value& set : row.sets) {
    for (const Value::Member& setting : set.members("set")) {
      document.set(setting.key, setting.value);
    }
  }
  return document.root();
}

std::set<std::string> lost_arguments(const RunsConfig& experiment, const PlannedRow& row) {
  std::set<std::string> lost = arguments_in(experiment.train);
  for (const Value& set : row.sets) lost.merge(arguments_in(set));
  if (lost.empty()) return lost;
  for (const std::string& argument : arguments_in(settings_of(experiment, row))) {
    lost.erase(argument);
  }
  return lost;
}

ConfigProblem config_problem(const PlotConfig& config) {
  const bool of_sizes = config.kind == "lines" || config.kind == "map";
  if (of_sizes != !config.series.empty() || of_sizes != !config.x.empty()) {
    return {of_sizes ? fmt::format("a plot of kind '{}' needs series and x", config.kind)
                     : "series and x are for plots of kind 'lines' and 'map'; leave both out",
            {"series", "x", "kind"}};
  }
  if (config.log_y && config.kind != "curves") {
    return {"log_y is for plots of kind 'curves'; leave it out", {"log_y", "kind"}};
  }
  if (config.kind != "scatter" || config.metrics.size() == 2) return {};
  return {fmt::format("a scatter plot needs two metrics, x and y, found {}", config.metrics.size()),
          {"metrics"}};
}

ConfigProblem config_problem(const SnapshotConfig& config) {
  for (const auto& [what, setting, names] : {std::tuple("metric", "best", &config.best),
                                             std::tuple("metric", "converged", &config.converged),
                                             std::tuple("probe", "probes", &config.probes)}) {
    const auto name = repeated_name(*names);
    if (name) return {fmt::format("the {} '{}' is listed twice", what, *name), {setting}};
  }
  return {};
}

ConfigProblem config_problem(const RunsConfig& config) {
  ConfigProblem problem = config.sweep.is_given() ? sweep_problem(config) : grid_problem(config);
  if (!problem.empty()) return problem;
  std::vector<std::string> names;
  if (config.sweep.is_given()) names = sweep_rows(config);
  for (const PlannedRow& row : planned_rows(config)) {  // None of a sweep.
    for (std::string& name : row.names()) names.push_back(std::move(name));
  }
  for (const std::string& name : names) {
    if (one_line(name, name.size()) != name) {
      return {fmt::format("the row '{}' has a control character in its name", one_line(name)),
              {"rows", "grid"}};
    }
  }
  if (const auto name = repeated_name(names)) {
    return {fmt::format("two rows are called '{}'", *name),
            {"rows", "grid", "keep", "criteria", "per_layer"}};
  }
  if (const auto probe = repeated_name(config.probes)) {
    return {fmt::format("the probe '{}' is listed twice", *probe), {"probes"}};
  }
  const auto check = [&](const std::string& row, const std::vector<double>& sizes) {
    if (problem.empty()) problem = row_problem(names, row, sizes);
  };
  for (const FitConfig& fit : config.fits) {
    for (const auto& [row, x] : fit.x) check(row, fit.sizes);
  }
  if (!problem.empty()) return {"fits: " + problem.text, {"fits"}};
  for (const FitConfig& fit : config.fits) names.push_back(fit.name);
  for (const PlotConfig& plot : config.plots) {
    for (const std::string& curve : plot.series) check(curve, plot.x);
  }
  for (const RatioConfig& ratio : config.ratios) {
    for (const std::string& side : {ratio.numerator, ratio.denominator}) check(side, ratio.x);
  }
  if (!problem.empty()) return problem;
  for (const RatioConfig& ratio : config.ratios) names.push_back(ratio.name);
  for (const auto& [row, unused] : config.paper) {  // What a sweep left out may stay there.
    if (config.sweep.is_given() && is_possible_sweep_row(config, row)) names.push_back(row);
  }
  return paper_problem(config.paper, names);
}

std::vector<std::string> PlannedRow::names() const {
  std::set<std::string> unique;
  for (const auto& [phase, row] : phase_rows) unique.insert(row);
  std::vector<std::string> names(unique.begin(), unique.end());
  names.push_back(name);
  return names;
}

std::vector<PlannedRow> planned_rows(const RunsConfig& config) {
  PlannedRow empty{"", {}, config.num_runs};
  if (!config.set.is_null()) empty.sets.push_back(config.set);
  std::vector<PlannedRow> rows;
  for (const RowConfig& row : config.rows) rows.push_back(with_point(empty, row, config.separator));
  std::vector<PlannedRow> grid(config.grid.empty() ? 0 : 1, empty);
  for (const std::vector<RowConfig>& axis : config.grid) {
    std::vector<PlannedRow> finer;
    for (const PlannedRow& row : grid) {
      for (const RowConfig& point : axis) finer.push_back(with_point(row, point, config.separator));
    }
    grid = std::move(finer);
  }
  rows.insert(rows.end(), grid.begin(), grid.end());
  return rows;
}

RunConfig config_of(const RunsConfig& experiment, const PlannedRow& row) {
  RunConfig config = parse<RunConfig>(settings_of(experiment, row));
  config.num_loader_threads = 0;  // Runs already use all cores in parallel.
  for (PhaseConfig& phase : config.phases) {
    if (experiment.max_steps == 0) continue;
    phase.epochs.reset();
    phase.steps = std::min(phase.steps.value_or(experiment.max_steps), experiment.max_steps);
  }
  return config;
}

std::string plan_rows_of(const RunsConfig& config) {
  if (config.sweep.is_given()) return plan_of_sweep(config);
  TextTable table({"row", "model", "parameters", "phases", "steps", "runs"}, 2);
  DatasetCache datasets{DatasetOpener(PlannedDatasets(), dataset_splits)};
  for (const PlannedRow& row : checked_rows(config)) {
    const RunConfig run = config_of(config, row);
    const std::shared_ptr<Model> model = build_initial_meta_model(run);
    int64_t steps = 0;
    for (const PhasePlan& phase : plan_phases(run, *model, datasets)) steps += phase.steps;
    table.add({fmt::format("{}", fmt::join(row.names(), " + ")),
               model->config().at("name").get<std::string>(), with_commas(model->num_parameters()),
               std::to_string(run.phases.size()), with_commas(steps),
               std::to_string(row.num_runs)});
  }
  return table.text();
}

bool measure_rows(const RunsConfig& config, const ReproduceOptions& options,
                  std::vector<MeasuredRow>& rows) {
  if (options.out.empty()) fail_usage("an experiment needs a folder; give --out");
  DatasetCache datasets(options.open);
  const PreparedRuns ready = config.sweep.is_given() ? prepare_sweep(config, options, datasets)
                                                     : prepare_grid(config, options, datasets);
  RunsCheck(config, ready).values();
  return make_rows(ready, options, rows);
}

}  // namespace moesaic
