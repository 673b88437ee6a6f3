// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "experiment_folder.h"
#include "experiment_run.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/text.h"
#include "moesaic/parallel/processes.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/table.h"
#include "moesaic/train/run_plan.h"
#include "run_log.h"
#include "run_pool.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostProcesses = 4096;

/// A row, ready to run with any seed.
struct ReadyRow {
  PlannedRow row;
  ExperimentRun run;
};

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

std::vector<ReadyRow> plan_rows(const RunsConfig& config, const std::string& device,
                                Datasets& datasets) {
  std::vector<ReadyRow> ready;
  for (PlannedRow& row : planned_rows(config)) {
    ExperimentRun run = plan_run(row, config, datasets);
    run.device = device;
    ready.push_back({std::move(row), std::move(run)});
  }
  return ready;
}

/// Returns the metrics of all rows, or those of their snapshots.
std::vector<Metric> all_metrics(const std::vector<ReadyRow>& rows, bool of_snapshots) {
  std::vector<Metric> all;
  const auto add = [&](const std::vector<Metric>& metrics) {
    for (const Metric& metric : metrics) {
      if (find_metric(all, metric.name) == nullptr) all.push_back(metric);
    }
  };
  for (const ReadyRow& row : rows) {
    if (of_snapshots) add(row.run.snapshot_metrics);
    if (of_snapshots) continue;
    for (const EarlierRow& earlier : row.run.earlier) add(earlier.metrics);
    add(row.run.metrics);
  }
  return all;
}

void check_metric(const std::vector<Metric>& known, const std::string& name,
                  const std::string& where) {
  if (find_metric(known, name) != nullptr) return;
  std::vector<std::string> names;
  for (const Metric& metric : known) names.push_back(metric.name);
  fail_usage("{}: no row has the metric '{}'{}{}", where, name, names.empty() ? "" : "; ",
             did_you_mean(name, names));
}

/// Checks the metrics of snapshots that become metrics of a run's end.
void check_snapshots(const RunsConfig& config, const std::vector<Metric>& curves) {
  const SnapshotConfig snapshots = config.snapshots.value_or(SnapshotConfig());
  for (const auto& [setting, names] :
       {std::pair("best", snapshots.best), std::pair("converged", snapshots.converged)}) {
    const std::string where = place_of(config.source, {fmt::format("snapshots.{}", setting)});
    for (const std::string& name : names) {
      check_metric(curves, name, where);
      if (!find_metric(curves, name)->is_table) continue;
      fail_usage("{}: '{}' is a table, of which there is no {}", where, name, setting);
    }
  }
}

/// Checks that some row has the phases after which is measured.
void check_phases(const RunsConfig& config, const std::vector<ReadyRow>& rows) {
  std::vector<std::string> phases;
  for (const ReadyRow& row : rows) {
    for (const PhaseConfig& phase : row.run.config.phases) phases.push_back(phase.name);
  }
  for (const auto& [phase, unused] : config.after) {
    if (std::find(phases.begin(), phases.end(), phase) != phases.end()) continue;
    fail_usage("{}: no row has a phase '{}'; {}",
               place_of(config.source, {"after." + phase, "after"}), phase,
               did_you_mean(phase, phases));
  }
}

bool is_ratio(const RunsConfig& config, const std::string& row, const std::string& metric) {
  return std::any_of(config.ratios.begin(), config.ratios.end(), [&](const RatioConfig& ratio) {
    return ratio.name == row && ratio.metric == metric;
  });
}

/// Checks that plots and the paper's values name measured metrics of the right kind.
void check_metrics(const RunsConfig& config, const std::vector<ReadyRow>& rows) {
  std::vector<Metric> final = all_metrics(rows, false);
  const std::vector<Metric> curves = all_metrics(rows, true);
  std::vector<std::string> names;
  for (const ReadyRow& row : rows) {
    for (std::string& name : row.row.names()) names.push_back(std::move(name));
  }
  for (size_t i = 0; i < config.plots.size(); ++i) {
    const PlotConfig& plot = config.plots[i];
    for (const std::string& row : plot.rows) {
      if (std::find(names.begin(), names.end(), row) != names.end()) continue;
      fail_usage("{}: there is no row '{}'; {}",
                 place_of(config.source, {fmt::format("plots.{}.rows", i), "plots"}), row,
                 did_you_mean(row, names));
    }
    const std::string where = place_of(config.source, {fmt::format("plots.{}", i), "plots",
                                                       "probes", "snapshots.probes", "snapshots"});
    for (const std::string& name : plot.metrics) {
      check_metric(plot.kind == "curves" ? curves : final, name, where);
      const bool table = find_metric(final, name)->is_table;
      if (plot.kind == "curves" || table == (plot.kind == "heatmap")) continue;
      fail_usage("{}: a plot of kind '{}' shows {}, but '{}' is {}", where, plot.kind,
                 table ? "numbers" : "tables", name, table ? "a table" : "a number");
    }
  }
  check_snapshots(config, curves);
  for (const FitConfig& fit : config.fits) {
    check_metric(final, fit.metric, place_of(config.source, {"fits"}));
    final.push_back({fit.exponent(), "exponent of " + fit.metric});
  }
  for (const RatioConfig& ratio : config.ratios) {
    check_metric(final, ratio.of, place_of(config.source, {"ratios"}));
  }
  for (const auto& [row, metrics] : config.paper) {
    for (const auto& [name, value] : metrics) {
      if (is_ratio(config, row, name)) continue;
      check_metric(final, name,
                   is_argument(config.source, "probes") ? place_of(config.source, {"probes"})
                                                        : value.where());
      if (find_metric(final, name)->is_table) {
        paper_table(config.paper, row, name);
      } else {
        paper_number(config.paper, row, name);
      }
    }
  }
}

Json settings_of(const RunsConfig& config, const std::vector<ReadyRow>& rows) {
  Json runs = Json::object(), earlier = Json::object();
  for (const ReadyRow& row : rows) {
    runs[row.row.name] = to_json(row.run.config);
    if (!row.row.earlier.empty()) earlier[row.row.name] = row.row.earlier;
  }
  Json settings = {{"runs", runs}, {"probes", config.probes}};
  if (!config.after.empty()) settings["after"] = config.after;
  if (!earlier.empty()) settings["earlier"] = earlier;
  if (config.snapshots) settings["snapshots"] = to_json(*config.snapshots);
  return settings;
}

RunRecord record_in(const Json& entry) {
  return parse<RunRecord>(Value::from_json(entry, "run"));
}

/// Returns what is missing in a measurement that was read from a file.
std::string measurement_problem(const std::vector<Metric>& metrics, const Measurement& found) {
  for (const Metric& metric : metrics) {
    const bool known =
        metric.is_table ? found.tables.contains(metric.name) : found.numbers.contains(metric.name);
    if (!known && !metric.optional)
      return fmt::format("it has no {} after {}", metric.name, count_text(found.step, "update"));
  }
  return "";
}

/// Returns what is wrong with snapshots that were read from a file. All tables of a metric are of
/// one size.
std::string snapshots_problem(const std::vector<Metric>& metrics,
                              const std::vector<Measurement>& snapshots, int64_t last_step) {
  if (metrics.empty()) return "";
  if (snapshots.empty()) return "it has no snapshots";
  for (const Measurement& at : snapshots) {
    if (std::string problem = measurement_problem(metrics, at); !problem.empty()) return problem;
    for (const auto& [metric, table] : at.tables) {
      const auto first = snapshots.front().tables.find(metric);
      if (first != snapshots.front().tables.end() && first->second.rows == table.rows &&
          first->second.columns == table.columns)
        continue;
      return fmt::format("its tables of {} differ in rows or columns", metric);
    }
  }
  const bool ascending =
      std::is_sorted(snapshots.begin(), snapshots.end(),
                     [](const Measurement& a, const Measurement& b) { return a.step <= b.step; });
  if (!ascending || snapshots.back().step != last_step) {
    return fmt::format("its snapshots do not ascend to its last update, {}", last_step);
  }
  return "";
}

/// Returns what is wrong with a run that was read from a file.
std::string record_problem(const std::vector<ReadyRow>& rows, const std::string& name,
                           const Json& entry) {
  try {
    const RunRecord record = record_in(entry);
    for (const ReadyRow& row : rows) {
      for (const EarlierRow& earlier : row.run.earlier) {
        if (earlier.name == name) return measurement_problem(earlier.metrics, record.final);
      }
      if (row.row.name != name) continue;
      std::string problem = measurement_problem(row.run.metrics, record.final);
      if (!problem.empty()) return problem;
      return snapshots_problem(row.run.snapshot_metrics, record.snapshots, record.final.step);
    }
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

/// Returns "<row>: <metric> <value>" for the progress bar.
std::string headline(const ReadyRow& row, const RunRecord& record) {
  for (const Metric& metric : row.run.metrics) {
    const auto found = record.final.numbers.find(metric.name);
    if (found == record.final.numbers.end()) continue;
    return fmt::format("{}: {} {:.{}f}", row.row.name, metric.name, found->second, metric.digits);
  }
  return row.row.name;
}

/// Returns whether a run is in the log, with all rows that it fills.
bool is_made(const ReadyRow& row, int64_t index, const RunLog& log) {
  const std::vector<std::string> names = row.row.names();
  return std::all_of(names.begin(), names.end(),
                     [&](const std::string& name) { return log.find(name, index) != nullptr; });
}

/// Makes the missing runs, of those that processes share every W-th.
bool make_missing(const std::vector<ReadyRow>& rows, Datasets& datasets, RunLog& log,
                  const ReproduceOptions& options) {
  std::vector<std::pair<const ReadyRow*, int64_t>> missing;
  std::vector<int64_t> images;
  int64_t number = 0;
  const int64_t rank = options.processes ? options.processes->rank() : 0;
  const int64_t size = options.processes ? options.processes->size() : 1;
  for (const ReadyRow& row : rows) {
    for (int64_t i = 0; i < row.row.runs; ++i) {
      if (is_made(row, i, log) || number++ % size != rank) continue;
      missing.emplace_back(&row, i);
      images.push_back(row.run.images());
    }
  }
  return make_runs(
      images, options, [&](size_t task, const Going& going) -> std::optional<std::string> {
        const auto [row, index] = missing[task];
        if (options.processes) {
          options.processes->set_activity(fmt::format("run {} of '{}'", index + 1, row->row.name));
        }
        const auto made = make_run(row->run, index, datasets, going);
        if (!made) return std::nullopt;
        for (const auto& [name, record] : made->earlier) {
          log.add(name, index, to_json(record));
        }
        log.add(row->row.name, index, to_json(made->record));
        return headline(*row, made->record);
      });
}

/// Adds to the runs of process 0 what others made before a call was killed.
void merge_runs(const std::function<std::filesystem::path(int64_t rank)>& file_of,
                const RunLog::Check& check) {
  RunLog log(file_of(0), check);
  for (int64_t rank = 1; rank < kMostProcesses; ++rank) log.merge(file_of(rank), check);
}

}  // namespace

std::string plan_rows_of(const RunsConfig& config) {
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
  check_arguments(config);
  Datasets datasets(options.open);
  const std::vector<ReadyRow> ready = plan_rows(config, options.device, datasets);
  check_phases(config, ready);
  check_metrics(config, ready);
  const Processes* const processes = options.processes.get();
  const bool leads = processes == nullptr || processes->leads();
  std::optional<ExperimentFolder> folder;
  const RunLog::Check check = [&](const std::string& row, const Json& entry) {
    return record_problem(ready, row, entry);
  };
  const auto file_of = [&](int64_t rank) {
    return options.out / (rank == 0 ? "runs.json" : fmt::format("runs-{}.json", rank));
  };
  if (leads) {
    folder.emplace(options.out);
    folder->claim(settings_of(config, ready));
    merge_runs(file_of, check);
  }
  if (processes != nullptr) processes->wait_for_all();
  RunLog log(file_of(0), check);
  if (!leads) log.write_apart(file_of(processes->rank()));
  if (processes != nullptr) processes->wait_for_all();  // All of them know the same runs.
  const bool complete = make_missing(ready, datasets, log, options);
  if (processes != nullptr) processes->wait_for_all();
  for (int64_t rank = 1; leads && processes != nullptr && rank < processes->size(); ++rank) {
    log.merge(file_of(rank), check);
  }
  if (!complete || !leads) return complete;
  for (const ReadyRow& row : ready) {
    for (int64_t i = 0; i < row.row.runs; ++i) {
      if (!is_made(row, i, log)) return false;  // A signal stopped another process.
    }
  }
  for (const ReadyRow& row : ready) {
    const auto add = [&](const std::string& name, const std::vector<Metric>& metrics) {
      rows.push_back({name, metrics, {}, row.run.earlier_phases});
      for (int64_t i = 0; i < row.row.runs; ++i) {
        rows.back().runs.push_back(record_in(*log.find(name, i)));
      }
    };
    for (const EarlierRow& earlier : row.run.earlier) add(earlier.name, earlier.metrics);
    add(row.row.name, row.run.metrics);
  }
  return true;
}

}  // namespace moesaic
