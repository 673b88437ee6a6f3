// SPDX-License-Identifier: Apache-2.0
#include "run_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "experiment_folder.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/text.h"
#include "moesaic/parallel/processes.h"
#include "run_log.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostProcesses = 4096;

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

/// Returns what is wrong with a run of a row that was read from a file.
std::string record_problem(const FilledRow& row, const Json& entry) {
  try {
    const RunRecord record = record_in(entry);
    std::string problem = measurement_problem(row.metrics, record.final);
    if (!problem.empty()) return problem;
    return snapshots_problem(row.snapshot_metrics, record.snapshots, record.final.step);
  } catch (const Error& error) {
    return error.what();
  }
}

/// Returns "<row>: <metric> <value>" for the progress bar.
std::string headline(const FilledRow& row, const RunRecord& record) {
  for (const Metric& metric : row.metrics) {
    const auto found = record.final.numbers.find(metric.name);
    if (found == record.final.numbers.end()) continue;
    return fmt::format("{}: {} {:.{}f}", row.name, metric.name, found->second, metric.digits);
  }
  return row.name;
}

/// The folder of an experiment, whose runs processes share: process 0 holds it, and each writes
/// what it made to a file of its own, for process 0 to merge.
class SharedRuns {
 public:
  SharedRuns(const ReadyRuns& runs, const ReproduceOptions& options)
      : runs_(runs), options_(options), check_([this](const std::string& row, const Json& entry) {
          const auto found = filled_.find(row);
          return found == filled_.end() ? "" : record_problem(*found->second, entry);
        }) {
    runs.for_each_filled(
        [&](const ReadyRow&, const FilledRow& filled) { filled_[filled.name] = &filled; });
    if (leads()) {
      folder_.emplace(options.out);
      remove_leftovers(options.out);
      folder_->claim(runs.settings);
      // What others made before a call was killed.
      RunLog log(file_of(0), check_);
      for (int64_t rank = 1; rank < kMostProcesses; ++rank) log.merge(file_of(rank), check_);
    }
    wait();
    log_.emplace(file_of(0), check_);
    if (!leads()) log_->write_apart(file_of(rank()));
    wait();  // All of them know the same runs.
  }

  /// Makes all runs. Returns false where a signal stopped one of the processes.
  bool make() {
    bool complete = true;
    for (size_t stage = 0; complete && stage < runs_.stages.size(); ++stage) {
      complete = make_missing(runs_.stages[stage]);
      wait();
      if (processes() != nullptr) complete = processes()->max(complete ? 0 : 1) == 0;
    }
    for (int64_t rank = 1; leads() && rank < size(); ++rank) log_->merge(file_of(rank), check_);
    return complete;
  }

  bool leads() const { return rank() == 0; }

  std::vector<MeasuredRow> rows() const {
    std::vector<MeasuredRow> rows;
    runs_.for_each_filled([&](const ReadyRow& row, const FilledRow& filled) {
      rows.push_back({filled.name, filled.metrics, {}, filled.earlier_phases});
      for (int64_t i = 0; i < row.runs; ++i) {
        rows.back().runs.push_back(record_in(*log_->find(filled.name, i)));
      }
    });
    return rows;
  }

 private:
  const Processes* processes() const { return options_.processes.get(); }
  int64_t rank() const { return processes() == nullptr ? 0 : processes()->rank(); }
  int64_t size() const { return processes() == nullptr ? 1 : processes()->size(); }
  void wait() const {
    if (processes() != nullptr) processes()->wait_for_all();
  }
  std::filesystem::path file_of(int64_t rank) const {
    return options_.out / (rank == 0 ? "runs.json" : fmt::format("runs-{}.json", rank));
  }

  /// Returns whether a run is in the log, with all rows that it fills.
  bool is_made(const ReadyRow& row, int64_t index) const {
    return std::all_of(row.fills.begin(), row.fills.end(), [&](const FilledRow& filled) {
      return log_->find(filled.name, index) != nullptr;
    });
  }

  /// Makes the missing runs of a stage, of those that processes share every W-th.
  bool make_missing(const std::vector<ReadyRow>& rows) {
    std::vector<std::pair<const ReadyRow*, int64_t>> missing;
    std::vector<int64_t> images;
    int64_t number = 0;
    for (const ReadyRow& row : rows) {
      for (int64_t i = 0; i < row.runs; ++i) {
        if (is_made(row, i) || number++ % size() != rank()) continue;
        missing.emplace_back(&row, i);
        images.push_back(row.images);
      }
    }
    const auto make = [&](size_t task, const Going& going) {
      return make_run(*missing[task].first, missing[task].second, going);
    };
    return runs_.on_disk ? make_runs_in_turn(missing.size(), options_, make)
                         : make_runs(images, options_, make);
  }

  std::optional<std::string> make_run(const ReadyRow& row, int64_t index, const Going& going) {
    if (processes() != nullptr) {
      processes()->set_activity(fmt::format("run {} of '{}'", index + 1, row.name));
    }
    const std::optional<MadeRun> made = row.make(index, going);
    if (!made) return std::nullopt;
    for (const FilledRow& filled : row.fills) {
      log_->add(filled.name, index, to_json(made->at(filled.name)));
    }
    return headline(row.fills.back(), made->at(row.fills.back().name));
  }

  const ReadyRuns& runs_;
  const ReproduceOptions& options_;
  RunLog::Check check_;
  std::map<std::string, const FilledRow*> filled_;
  std::optional<ExperimentFolder> folder_;
  std::optional<RunLog> log_;
};

}  // namespace

bool make_rows(const ReadyRuns& runs, const ReproduceOptions& options,
               std::vector<MeasuredRow>& rows) {
  SharedRuns shared(runs, options);
  if (!shared.make()) return false;
  if (!shared.leads()) return true;
  rows = shared.rows();
  try {
    if (runs.finish) runs.finish(rows);
    return true;
  } catch (const Stopped&) {
    return false;
  }
}

}  // namespace moesaic
