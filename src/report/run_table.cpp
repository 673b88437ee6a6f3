// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/run_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <system_error>

#include "memory_run.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/nearest.h"
#include "run_log.h"
#include "run_pool.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Metrics = std::map<std::string, double>;

/// One row, ready to run with any seed.
struct PlannedRow {
  std::string name;
  int64_t runs = 0;
  MemoryRun run;
};

PlannedRow plan_row(const RunTableConfig& table, const RunTableRow& row, Datasets& datasets) {
  return {row.name, row.runs.value_or(table.runs),
          plan_memory_run(changed_run(table.train, row.set, table.max_steps), datasets)};
}

/// Metrics of one run, or nothing where `going` ended it.
std::optional<Metrics> metrics_of_run(const MemoryRun& run, int64_t index,
                                      const std::function<bool()>& going) {
  const auto trained = train_in_memory(run, index, [&](Model&, int64_t) { return going(); });
  if (!trained) return std::nullopt;
  const EvaluateOptions options = evaluate_options(run.config);
  Metrics metrics = {{"test_accuracy", evaluate(*trained->model, run.test, options).accuracy},
                     {"steps", static_cast<double>(trained->steps)}};
  const Evaluation on_train = evaluate(*trained->model, run.train.back(), options);
  if (!on_train.routing.empty()) {
    const LayerRouting& layer = on_train.routing.back();
    metrics["entropy"] = layer.by_group.value_or(layer.by_class).entropy;
  }
  return metrics;
}

/// What is wrong with metrics that were read from a file.
std::string metrics_problem(const Json& entry) {
  if (!entry.is_object()) return "it is no object of metrics";
  for (const char* name : {"test_accuracy", "steps"}) {
    if (!entry.contains(name)) return fmt::format("it has no {}", name);
  }
  for (const auto& [name, value] : entry.items()) {
    if (!value.is_number()) return fmt::format("its {} is no number", name);
  }
  return "";
}

bool make_rows(const std::vector<PlannedRow>& rows, RunLog& log, const ReproduceOptions& options) {
  std::vector<std::pair<const PlannedRow*, int64_t>> missing;
  for (const PlannedRow& row : rows) {
    for (int64_t i = 0; i < row.runs; ++i) {
      if (log.find(row.name, i) == nullptr) missing.emplace_back(&row, i);
    }
  }
  return make_runs(missing.size(), options,
                   [&](size_t task, const auto& going) -> std::optional<std::string> {
                     const auto [row, index] = missing[task];
                     const auto metrics = metrics_of_run(row->run, index, going);
                     if (!metrics) return std::nullopt;
                     log.add(row->name, index, *metrics);
                     return fmt::format("{}: {:.2f} %", row->name, metrics->at("test_accuracy"));
                   });
}

Json settings_of(const std::vector<PlannedRow>& rows) {
  Json json = Json::object();
  for (const PlannedRow& row : rows) json[row.name] = to_json(row.run.config);
  return {{"run-table", json}};
}

void check_names(const RunTableConfig& config) {
  std::set<std::string> names;
  for (const RunTableRow& row : config.rows) {
    if (!names.insert(row.name).second) fail_usage("two rows are called '{}'", row.name);
  }
}

double mean_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double deviation_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double squares = 0.0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

}  // namespace

ConfigProblem config_problem(const RunTableRow& config) {
  const std::vector<std::string> known = run_table_metrics();
  for (const auto& [metric, numbers] : config.paper) {
    if (std::find(known.begin(), known.end(), metric) == known.end()) {
      return {fmt::format("unknown metric '{}'; {}", metric, did_you_mean(metric, known)),
              {"paper"}};
    }
    if (numbers.empty() || numbers.size() > 2) {
      return {fmt::format("paper.{} is the value and its spread, or the value alone", metric),
              {"paper." + metric}};
    }
  }
  return {};
}

std::vector<std::string> run_table_metrics() {
  return {"test_accuracy", "entropy", "steps"};
}

bool run_run_table(const RunTableConfig& config, const ReproduceOptions& options,
                   RunTableOutcome& outcome) {
  check_names(config);
  if (options.out.empty()) fail_usage("an experiment needs a folder; give --out");
  Datasets datasets(options.open);
  std::vector<PlannedRow> rows;
  for (const RunTableRow& row : config.rows) rows.push_back(plan_row(config, row, datasets));
  std::error_code error;
  fs::create_directories(options.out, error);
  if (error) fail("{}: cannot make the folder: {}", options.out.string(), error.message());
  const LockFile lock(options.out);
  claim_folder(options.out, settings_of(rows));
  RunLog log(options.out / "runs.json", metrics_problem);
  if (!make_rows(rows, log, options)) return false;
  for (const PlannedRow& row : rows) {
    outcome.rows.push_back({row.name, {}});
    for (int64_t i = 0; i < row.runs; ++i) {
      outcome.rows.back().runs.push_back(log.find(row.name, i)->get<Metrics>());
    }
  }
  return true;
}

std::vector<ResultRow> run_table_rows(const RunTableConfig& config,
                                      const RunTableOutcome& outcome) {
  std::vector<ResultRow> results;
  for (size_t r = 0; r < outcome.rows.size(); ++r) {
    const auto& row = outcome.rows[r];
    for (const std::string& metric : run_table_metrics()) {
      std::vector<double> values;
      for (const Metrics& run : row.runs) {
        if (const auto found = run.find(metric); found != run.end())
          values.push_back(found->second);
      }
      if (values.empty()) continue;
      ResultRow result{row.name, metric, mean_of(values)};
      result.runs = static_cast<int64_t>(values.size());
      if (values.size() > 1) result.std = deviation_of(values);
      if (const auto paper = config.rows[r].paper.find(metric);
          paper != config.rows[r].paper.end()) {
        result.paper = paper->second[0];
        if (paper->second.size() > 1) result.paper_std = paper->second[1];
      }
      results.push_back(std::move(result));
    }
  }
  return results;
}

}  // namespace moesaic
