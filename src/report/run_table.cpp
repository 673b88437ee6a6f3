// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/run_table.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/path.h"
#include "moesaic/base/progress.h"
#include "moesaic/config/document.h"
#include "moesaic/train/evaluate.h"
#include "moesaic/train/phase.h"
#include "moesaic/train/run_plan.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Metrics = std::map<std::string, double>;

/// One row, ready to run with any seed.
struct PlannedRow {
  std::string name;
  int64_t runs = 0;
  RunConfig config;
  std::vector<PhasePlan> phases;
  std::vector<std::shared_ptr<const Dataset>> train;  ///< of each phase
  std::shared_ptr<const Dataset> test;                ///< of the last one
};

RunConfig config_of(const RunTableConfig& table, const RunTableRow& row) {
  Document document(table.train);
  if (row.set.is_object()) {
    for (const Value::Member& setting : row.set.members("set")) {
      document.set(setting.key + "=" + setting.value.to_json().dump());
    }
  }
  RunConfig config = parse<RunConfig>(document.root());
  for (PhaseConfig& phase : config.phases) {
    if (table.most_steps == 0) continue;
    phase.epochs.reset();
    phase.steps = std::min(phase.steps.value_or(table.most_steps), table.most_steps);
  }
  return config;
}

PlannedRow plan_row(const RunTableConfig& table, const RunTableRow& row, Datasets& datasets) {
  PlannedRow planned{row.name, row.runs.value_or(table.runs), config_of(table, row), {}, {}, {}};
  for (const PhaseConfig& phase : planned.config.phases) {
    if (phase.on_entry.prune || phase.on_entry.new_head) {
      fail_usage("{}: the runs of a run-table have no on_entry",
                 place_of(phase.source, {"on_entry"}));
    }
  }
  planned.phases = plan_phases(planned.config, *build_initial_shape(planned.config), datasets);
  for (const PhasePlan& phase : planned.phases) {
    planned.train.push_back(datasets.get(phase.config.data, "train", phase.config.preprocess));
  }
  const PhaseConfig& last = planned.phases.back().config;
  planned.test = datasets.get(last.data, "test", last.preprocess);
  return planned;
}

EvaluateOptions evaluate_options(const RunConfig& config) {
  return {.batch_size = config.evaluate_batch_size,
          .loader_threads = 0,
          .proceed = {},
          .loss = config.phases.back().loss,
          .precision = config.precision};
}

/// Metrics of one run, or nothing where `go_on` ended it.
std::optional<Metrics> make_run(const PlannedRow& row, int64_t index,
                                const std::function<bool()>& go_on) {
  RunConfig config = row.config;
  config.seed += index;
  const std::shared_ptr<Model> model = build_initial_model(config);
  load_initial_weights(config, *model);
  int64_t steps = 0;
  for (size_t i = 0; i < row.phases.size(); ++i) {
    Phase phase(row.phases[i], model, row.train[i],
                phase_seed(config.seed, static_cast<int64_t>(i)), /*loader_threads=*/0, {});
    while (!phase.done()) {
      if (!go_on()) return std::nullopt;
      if (!phase.step().ends) ++steps;
    }
  }
  const EvaluateOptions options = evaluate_options(config);
  Metrics metrics = {{"test_accuracy", evaluate(*model, row.test, options).accuracy},
                     {"steps", static_cast<double>(steps)}};
  const Evaluation on_train = evaluate(*model, row.train.back(), options);
  if (!on_train.routing.empty()) {
    const LayerRouting& layer = on_train.routing.back();
    metrics["entropy"] = layer.by_group.value_or(layer.by_class).entropy;
  }
  return metrics;
}

/// The finished runs, in a file.
class RunLog {
 public:
  explicit RunLog(fs::path file) : file_(std::move(file)) {
    if (fs::exists(file_)) runs_ = Json::parse(read_text(file_), nullptr, false);
    if (!runs_.is_object()) runs_ = Json::object();
  }

  const Json* find(const std::string& row, int64_t index) const {
    const auto found = runs_.find(key(row, index));
    return found == runs_.end() ? nullptr : &*found;
  }
  void add(const std::string& row, int64_t index, const Metrics& metrics) {
    runs_[key(row, index)] = metrics;
    write_atomic(file_, runs_.dump(1) + "\n");
  }

 private:
  static std::string key(const std::string& row, int64_t index) {
    return fmt::format("{}#{}", row, index);
  }
  fs::path file_;
  Json runs_ = Json::object();
};

struct Task {
  size_t row;
  int64_t index;
};

/// Threads that take one run after the other.
class RunTable {
 public:
  RunTable(const std::vector<PlannedRow>& rows, RunLog& log, const ReproduceOptions& options)
      : rows_(rows), log_(log), options_(options) {
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int64_t i = 0; i < rows[r].runs; ++i) {
        if (log.find(rows[r].name, i) == nullptr) tasks_.push_back({r, i});
      }
    }
  }

  /// False where a signal stopped it.
  bool run() {
    if (tasks_.empty()) return true;
    std::optional<Progress> progress;
    if (options_.progress) {
      progress.emplace(ProgressOptions{
          .label = "runs", .total = static_cast<int64_t>(tasks_.size()), .unit = "runs"});
    }
    progress_ = progress ? &*progress : nullptr;
    std::vector<std::thread> threads;
    const int count = std::min<int>(at::get_num_threads(), static_cast<int>(tasks_.size()));
    for (int i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
    if (progress) progress->finish();
    return !stopped();
  }

 private:
  bool stopped() const { return options_.stop != nullptr && options_.stop->requested(); }

  void work() {
    omp_set_num_threads(1);  // this thread is one of several already
    try {
      while (const std::optional<Task> task = next()) {
        const PlannedRow& row = rows_[task->row];
        const auto metrics = make_run(row, task->index, [this] { return going(); });
        if (!metrics) return;
        const std::lock_guard lock(mutex_);
        log_.add(row.name, task->index, *metrics);
        if (progress_ != nullptr) {
          progress_->advance(1,
                             fmt::format("{}: {:.2f} %", row.name, metrics->at("test_accuracy")));
        }
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  bool going() {
    const std::lock_guard lock(mutex_);
    return !error_ && !stopped();
  }

  std::optional<Task> next() {
    const std::lock_guard lock(mutex_);
    if (taken_ == tasks_.size() || error_ || stopped()) return std::nullopt;
    return tasks_[taken_++];
  }

  const std::vector<PlannedRow>& rows_;
  RunLog& log_;
  const ReproduceOptions& options_;
  std::vector<Task> tasks_;
  std::mutex mutex_;
  size_t taken_ = 0;
  std::exception_ptr error_;
  Progress* progress_ = nullptr;
};

Json settings_of(const std::vector<PlannedRow>& rows) {
  Json json = Json::object();
  for (const PlannedRow& row : rows) json[row.name] = to_json(row.config);
  return {{"run-table", json}};
}

/// `out` is new, or was made with the same settings.
void claim_folder(const fs::path& out, const Json& settings) {
  const fs::path file = out / "config.json";
  if (fs::exists(file)) {
    if (Json::parse(read_text(file), nullptr, false) == settings) return;
    fail_usage("{}: was made with other settings; give another --out", out.string());
  }
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    if (name == ".lock" || name == "elapsed.json") continue;
    fail_usage("{}: there is something already that is not this experiment; give another --out",
               out.string());
  }
  write_atomic(file, settings.dump(2) + "\n");
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
  RunLog log(options.out / "runs.json");
  if (!RunTable(rows, log, options).run()) return false;
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
