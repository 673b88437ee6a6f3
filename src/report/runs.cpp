// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "experiment_run.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/text.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/table.h"
#include "moesaic/train/run_plan.h"
#include "run_rows.h"
#include "sweep_runs.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

/// Refuses arguments of the command line that every row's own settings replace, and warns of those
/// that some rows' do.
void check_arguments(const RunsConfig& config) {
  const std::vector<PlannedRow> rows = planned_rows(config);
  std::map<std::string, std::vector<std::string>> lost;
  for (const PlannedRow& row : rows) {
    for (const std::string& argument : lost_arguments(config, row)) {
      lost[argument].push_back(row.name);
    }
  }
  for (const auto& [argument, names] : lost) {
    if (names.size() == rows.size()) {
      fail_usage(
          "{}: it would change nothing, since every row ('{}') sets this itself; change the rows "
          "in a copy of the experiment",
          argument, names.front());
    }
    log_warning("{}: {} of {} rows set this themselves and keep theirs, the first is '{}'",
                argument, names.size(), rows.size(), names.front());
  }
}

/// Checks what an experiment says of rows, phases and metrics against those that its runs have.
class RunsCheck {
 public:
  RunsCheck(const RunsConfig& config, const ReadyRuns& runs) : config_(config) {
    runs.for_each_filled([&](const ReadyRow&, const FilledRow& row) {
      names_.push_back(row.name);
      add(row.metrics, final_);
      add(row.snapshot_metrics, curves_);
    });
  }

  /// Checks that some row has the phases after which is measured.
  void phases(const std::vector<std::string>& phases) const {
    for (const auto& [phase, unused] : config_.after) {
      if (std::find(phases.begin(), phases.end(), phase) != phases.end()) continue;
      fail_usage("{}: no row has a phase '{}'; {}", where({"after." + phase, "after"}), phase,
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
        fail_usage("{}: '{}' is a table, of which there is no {}", place, name, setting);
      }
    }
  }

  /// Checks that plots name rows, and measured metrics of the right kind.
  void plots() const {
    for (size_t i = 0; i < config_.plots.size(); ++i) {
      const PlotConfig& plot = config_.plots[i];
      for (const std::string& row : plot.rows) {
        if (std::find(names_.begin(), names_.end(), row) != names_.end()) continue;
        fail_usage("{}: there is no row '{}'; {}",
                   where({fmt::format("plots.{}.rows", i), "plots"}), row,
                   did_you_mean(row, names_));
      }
      const std::string place =
          where({fmt::format("plots.{}", i), "plots", "probes", "snapshots.probes", "snapshots"});
      const bool curves = plot.kind == "curves";
      for (const std::string& name : plot.metrics) {
        const bool table = known(curves ? curves_ : final_, name, place).is_table;
        if (curves || table == (plot.kind == "heatmap")) continue;
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
      known(final_, ratio.of, where({"ratios"}));
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

  std::string where(const std::vector<std::string>& blamed) const {
    return place_of(config_.source, blamed);
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

ReadyRow ready_row(const PlannedRow& row, ExperimentRun planned, Datasets& datasets) {
  const auto run = std::make_shared<const ExperimentRun>(std::move(planned));
  ReadyRow ready{
      .name = row.name, .fills = run->earlier, .runs = row.runs, .images = run->images()};
  ready.fills.push_back({row.name, run->metrics, run->snapshot_metrics});
  for (FilledRow& filled : ready.fills) filled.earlier_phases = run->earlier_phases;
  ready.make = [run, &datasets](int64_t index, const Going& going) {
    return make_run(*run, index, datasets, going);
  };
  return ready;
}

/// Plans the rows of a grid, and checks what is to be measured and drawn of them.
ReadyRuns ready_grid(const RunsConfig& config, const ReproduceOptions& options,
                     Datasets& datasets) {
  check_arguments(config);
  Json runs = Json::object(), earlier = Json::object();
  ReadyRuns ready{.stages = std::vector<std::vector<ReadyRow>>(1)};
  std::vector<std::string> phases;
  for (PlannedRow& row : planned_rows(config)) {
    ExperimentRun run = plan_run(row, config, datasets);
    run.device = options.device;
    runs[row.name] = to_json(run.config);
    if (!row.earlier.empty()) earlier[row.name] = row.earlier;
    for (const PhaseConfig& phase : run.config.phases) phases.push_back(phase.name);
    ready.stages[0].push_back(ready_row(row, std::move(run), datasets));
  }
  const RunsCheck check(config, ready);
  check.phases(phases);
  check.plots();
  check.snapshots(config.snapshots.value_or(SnapshotConfig()));
  ready.settings = {{"runs", std::move(runs)}, {"probes", config.probes}};
  if (!config.after.empty()) ready.settings["after"] = config.after;
  if (!earlier.empty()) ready.settings["earlier"] = std::move(earlier);
  if (config.snapshots) ready.settings["snapshots"] = to_json(*config.snapshots);
  return ready;
}

}  // namespace

std::string plan_rows_of(const RunsConfig& config) {
  if (config.sweep.is_given()) return plan_of_sweep(config);
  check_arguments(config);
  TextTable table({"row", "model", "parameters", "phases", "updates", "runs"}, 2);
  Datasets datasets{DatasetOpener(PlannedDatasets(), dataset_splits)};
  for (const PlannedRow& row : planned_rows(config)) {
    const RunConfig run = config_of(config, row);
    const std::shared_ptr<Model> model = build_initial_shape(run);
    int64_t updates = 0;
    for (const PhasePlan& phase : plan_phases(run, *model, datasets)) updates += phase.steps;
    table.add({fmt::format("{}", fmt::join(row.names(), " + ")),
               model->config().at("name").get<std::string>(), with_commas(model->parameter_count()),
               std::to_string(run.phases.size()), with_commas(updates), std::to_string(row.runs)});
  }
  return table.text();
}

bool measure_rows(const RunsConfig& config, const ReproduceOptions& options,
                  std::vector<MeasuredRow>& rows) {
  if (options.out.empty()) fail_usage("an experiment needs a folder; give --out");
  Datasets datasets(options.open);
  const ReadyRuns ready = config.sweep.is_given() ? ready_sweep(config, options, datasets)
                                                  : ready_grid(config, options, datasets);
  RunsCheck(config, ready).values();
  return make_rows(ready, options, rows);
}

}  // namespace moesaic
