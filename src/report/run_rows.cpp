// SPDX-License-Identifier: Apache-2.0
#include "experiment_run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <system_error>

#include "moesaic/base/background_task.h"
#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/base/progress.h"
#include "moesaic/base/text.h"
#include "moesaic/config/difference.h"
#include "moesaic/config/document.h"
#include "moesaic/parallel/process_mesh.h"
#include "run_log.h"

namespace moesaic {
namespace {

/// Gives the choices by layer of a sweep, as an older version wrote them, their present names.
void name_layer_choices(Json& settings) {
  const auto runs = settings.find("runs");
  if (runs == settings.end() || !runs->is_object()) return;
  constexpr std::string_view kLayer = "by_layer.";
  auto present = Json::object();
  for (const auto& [key, part] : runs->items()) {
    present[key.starts_with(kLayer) ? "per_layer." + key.substr(kLayer.size()) : key] = part;
  }
  *runs = std::move(present);
}

/// Adds to the "runs" of each those that only the other has: rows may join a folder.
void join_runs(Json& before, Json& now) {
  if (!before.is_object() || !before.contains("runs") || !before["runs"].is_object()) return;
  const auto add = [](const Json& from, Json& to) {
    for (const auto& [row, run] : from.items()) to.emplace(row, Json(run));
  };
  if (now.contains("experiment")) before.emplace("experiment", Json(now["experiment"]));
  add(before["runs"], now["runs"]);
  add(now["runs"], before["runs"]);
}

/// Says of phases of an older version, which do not, that they read photos as these are stored.
void keep_orientation(Json& run) {
  for (Json& phase : run.at("phases")) {
    const auto found = phase.is_object() ? phase.find("preprocess") : phase.end();
    if (found != phase.end() && found->is_object()) found->emplace("orientation", "stored");
  }
}

/// Returns the settings of a folder by which results can differ, as this version writes them: where
/// seconds are measured, activation checkpointing too.
Json settings_of_folder(Json settings) {
  const Json::json_pointer converged("/snapshots/converged");
  const bool timed = settings.contains(converged) && !settings.at(converged).empty();
  for (const auto& [key, part] : settings.items()) {
    if (key == "snapshots") part = with_current_settings<SnapshotConfig>(part);
    if (key != "runs" || !part.is_object()) continue;
    for (const auto& [name, run] : part.items()) {
      if (run.contains("phases")) {
        keep_orientation(run);
        Json checkpointing = false;
        for (const char* key : {"recompute", "activation_checkpointing"}) {  // Formerly the first.
          if (run.contains(key)) checkpointing = run[key];
        }
        run = settings_of_results(std::move(run));
        if (timed) run["activation_checkpointing"] = checkpointing;
      } else if (name == "recover") {
        run = with_current_settings<PhaseConfig>(run);
      } else if (name == "prune") {
        run = with_current_settings<SweepConfig>(run);
      }
    }
  }
  return settings;
}

/// Returns what the object in a file of JSON has of that key, null without one.
Json value_in(const fs::path& file, const char* key) {
  if (!fs::is_regular_file(status_of(file))) return nullptr;
  const auto json = find_json(read_text(file, kMaxListBytes, "a JSON file"), kMaxListBytes);
  return json && json->is_object() ? json->value(key, Json()) : Json();
}

/// Returns the folder, made if missing. Throws Error (usage) for an empty name, for a file, and for
/// a folder with files but without the config.json of an experiment, but for those of a failed
/// call; Error (failure) for a link to a file in it, which would be written through.
fs::path made_folder(const fs::path& out, const Json& settings) {
  if (out.empty()) fail_usage("an experiment needs a folder; give --out");
  check_folder_path(out, "--out");
  // Version 0.2 left no config.json where nothing was trained.
  const Json found = value_in(out / "results.json", "experiment");
  const bool known = fs::exists(out / "config.json") ||
                     (!found.is_null() && found == settings.value("experiment", Json()));
  if (path_exists(out) && !known) {
    for (const auto& entry : fs::directory_iterator(out)) {
      const std::string name = entry.path().filename().string();
      if (name == ".lock" ||
          (name == "elapsed.json" && !value_in(entry.path(), "seconds").is_null())) {
        continue;
      }
      fail_usage("{}: the folder holds something that is not this experiment; give another --out",
                 out.string());
    }
  }
  const std::set<std::string> names = {"config.json", "elapsed.json", "results.json", "report.md"};
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(out, none)) {
    const std::string name = entry.path().filename().string();
    const bool is_written =
        names.contains(name) || name.starts_with("runs") || name.starts_with("figure");
    if (!entry.is_symlink() || !is_written) continue;
    fail("{}: a link, which is not followed; remove it", entry.path().string());
  }
  std::error_code error;
  create_folders(out, error);
  if (error) fail("{}: cannot make the folder: {}", out.string(), error.message());
  return fs::canonical(out);
}

/// Writes `settings` to the folder's config.json, or compares them with those in it, whose "runs"
/// they join. Throws Error (usage) if they differ in what both have.
void claim(const fs::path& folder, Json settings) {
  const fs::path file = folder / "config.json";
  if (fs::exists(file)) {
    auto found = find_json(read_text(file, kMaxListBytes, "a configuration"), kMaxListBytes);
    if (!found) fail_usage("{}: corrupt: not JSON; give another --out", file.string());
    if (*found == settings) return;
    name_layer_choices(*found);
    join_runs(*found, settings);
    const std::vector<Difference> changed =
        setting_changes(settings_of_folder(std::move(*found)), settings_of_folder(settings));
    if (!changed.empty()) {
      fail_usage(
          "{}: was made with other settings: {}; set back what changed or give another --out",
          folder.string(), describe(changed));
    }
  }
  write_atomic(file, settings.dump(2) + "\n");
}

/// Makes runs of so many images: in parallel, one per thread, or `in_turn` those that take all
/// threads and tell of their progress themselves. make(number, on_images) makes one while
/// `on_images()` and returns text for a progress bar, or nothing where it was ended. An exception
/// of a run ends all runs. Returns false if a signal stopped it.
bool make_all(const std::vector<int64_t>& images, const ReproduceOptions& options, bool in_turn,
              const auto& make) {
  std::optional<Progress> progress;
  if (options.show_progress && !in_turn && !images.empty()) {
    progress.emplace(
        ProgressOptions{.label = "runs",
                        .total = std::accumulate(images.begin(), images.end(), int64_t{0}),
                        .unit = "images"});
  }
  std::mutex mutex;
  std::vector<int64_t> taken(images.size());  // Images that each run has taken.
  std::atomic<bool> ended = false, failed = false;
  const auto stopped = [&] { return options.stop != nullptr && options.stop->is_requested(); };
  const auto advance = [&](size_t task, int64_t count, std::string_view note = {}) {
    const int64_t more = count - std::exchange(taken[task], count);
    if (progress) progress->advance(more, note);
  };
  const auto work = [&](size_t task) {
    if (ended || failed || stopped()) return;
    try {
      const std::optional<std::string> said = make(task, [&](int64_t count) {
        const std::lock_guard lock(mutex);
        advance(task, count);
        return !failed && !stopped();
      });
      if (!said) throw Stopped{};
      const std::lock_guard lock(mutex);
      advance(task, images[task], *said);  // It may have ended early.
    } catch (const Stopped&) {
      ended = true;
    } catch (...) {
      failed = true;
      throw;
    }
  };
  const int threads_wanted =
      options.device == "cpu" ? at::get_num_threads() : 1;  // A GPU takes one.
  for (size_t i = 0; in_turn && i < images.size(); ++i) work(i);
  on_threads(in_turn ? 0 : images.size(), static_cast<size_t>(threads_wanted), [&](size_t task) {
    omp_set_num_threads(1);  // Other threads already use the remaining cores.
    work(task);
  });
  if (progress) progress->finish();
  return !ended && !stopped();
}

RunRecord record_in(const Json& entry) {
  auto record = parse<RunRecord>(Value::from_json(entry, "run"));
  if (auto former = record.final.numbers.extract(kFormerStepSeconds)) {
    former.key() = kStepSeconds;
    record.final.numbers.insert(std::move(former));
  }
  return record;
}

/// Returns what is missing in a measurement that was read from a file.
std::string measurement_problem(const std::vector<Metric>& metrics, const Measurement& found) {
  for (const Metric& metric : metrics) {
    const bool known =
        metric.is_table ? found.tables.contains(metric.name) : found.numbers.contains(metric.name);
    if (!known && !metric.is_optional)
      return fmt::format("it has no {} after {}", metric.name, count_text(found.step, "step"));
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
  const bool ascending = std::ranges::is_sorted(snapshots, std::less_equal<>(), &Measurement::step);
  if (!ascending || snapshots.back().step != last_step) {
    return fmt::format("its snapshots do not ascend to its last step, {}", last_step);
  }
  return "";
}

/// Returns what is wrong with a run of a row that was read from a file.
std::string record_problem(const MeasuredRow& row, const Json& entry) {
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
std::string headline(const MeasuredRow& row, const RunRecord& record) {
  for (const Metric& metric : row.metrics) {
    const auto found = record.final.numbers.find(metric.name);
    if (found == record.final.numbers.end()) continue;
    return fmt::format("{}: {} {:.{}f}", row.name, metric.name, found->second, metric.digits);
  }
  return row.name;
}

/// The folder of an experiment, whose runs processes share: process 0 holds it. Each keeps what it
/// made in a file of its own until process 0 has it, which merges those that a killed call left.
class DistributedRuns {
 public:
  DistributedRuns(const PreparedRuns& runs, const ReproduceOptions& options)
      : runs_(runs), options_(options) {
    for (const PreparedRow& row : runs.rows) {
      for (const MeasuredRow& filled : row.result_rows) filled_[filled.name] = &filled;
    }
    const RunLog::Check check = [this](const std::string& row, const Json& entry) {
      const auto found = filled_.find(row);
      return found == filled_.end() ? "" : record_problem(*found->second, entry);
    };
    if (is_rank_zero()) {
      lock_.emplace(hold_folder(options.out, runs.settings));
      log_.emplace(file_of(0), check);
      log_->merge(files_of_others());
    }
    wait();
    if (!is_rank_zero()) {
      log_.emplace(file_of(0), check, /*is_own=*/false);
      own_.emplace(file_of(rank()), check);
    }
    wait();  // All of them know the same runs.
  }

  /// Makes all runs. Returns false where a signal stopped one of the processes.
  bool make() {
    bool complete = true;
    for (size_t stage = 0; complete && stage <= runs_.rows.back().stage; ++stage) {
      complete = make_missing(stage);
      wait();
      if (processes() != nullptr) complete = processes()->all_reduce_max(complete ? 0 : 1) == 0;
    }
    share();
    return complete;
  }

  bool is_rank_zero() const { return rank() == 0; }

  std::vector<MeasuredRow> rows() const {
    std::vector<MeasuredRow> rows;
    for (const PreparedRow& row : runs_.rows) {
      for (const MeasuredRow& filled : row.result_rows) {
        rows.push_back(filled);
        for (int64_t i = 0; i < row.num_runs; ++i) {
          rows.back().runs.push_back(record_in(*log_->find(filled.name, i)));
        }
      }
    }
    return rows;
  }

 private:
  /// Puts the runs of all processes into the file of process 0. They are sent: a folder of another
  /// machine may show late what the others wrote.
  void share() {
    if (processes() != nullptr) {
      const std::string own = own_ ? own_->text() : "{}";
      for (const std::string& text : processes()->world().all_gather_strings(own)) {
        const Value entries = parse_stored(text, "a process", kMaxListBytes);
        const std::string wrong = log_->take(entries.to_json());
        if (!wrong.empty()) fail("a process sent a run that does not fit: {}", wrong);
      }
    }
    if (is_rank_zero()) log_->fold();
    wait();
    if (own_) own_->remove();
  }

  const ProcessMesh* processes() const { return options_.processes.get(); }
  int64_t rank() const { return processes() == nullptr ? 0 : processes()->rank(); }
  int64_t size() const { return processes() == nullptr ? 1 : processes()->size(); }
  void wait() const {
    if (processes() != nullptr) processes()->barrier();
  }
  fs::path file_of(int64_t rank) const {
    return options_.out / (rank == 0 ? "runs.json" : fmt::format("runs-{}.json", rank));
  }

  /// Returns the files of other processes, which a killed call left.
  std::set<fs::path> files_of_others() const {
    std::set<fs::path> files;
    for (const auto& entry : fs::directory_iterator(options_.out)) {
      std::string name = entry.path().filename().string();
      if (name.ends_with(".jsonl")) name.pop_back();
      if (!name.starts_with("runs-") || !name.ends_with(".json")) continue;
      // No others: a copy that somebody made is not ours to remove.
      const auto rank = parsed_number<uint16_t>(name.substr(5, name.size() - 10));
      if (rank > 0 && options_.out / name == file_of(*rank)) files.insert(options_.out / name);
    }
    return files;
  }

  /// Returns whether a run is in the log, with all rows that it fills.
  bool is_made(const PreparedRow& row, int64_t index) const {
    return std::ranges::all_of(row.result_rows, [&](const MeasuredRow& filled) {
      return log_->find(filled.name, index) != nullptr;
    });
  }

  /// Makes the missing runs of a stage, of those that processes share every W-th.
  bool make_missing(size_t stage) {
    std::vector<std::pair<const PreparedRow*, int64_t>> missing;
    std::vector<int64_t> images;
    int64_t number = 0;
    for (const PreparedRow& row : runs_.rows) {
      for (int64_t i = 0; i < (row.stage == stage ? row.num_runs : 0); ++i) {
        if (is_made(row, i) || number++ % size() != rank()) continue;
        missing.emplace_back(&row, i);
        images.push_back(row.images);
      }
    }
    const auto make = [&](size_t task, const ImageCallback& on_images) {
      const auto& [row, index] = missing[task];
      if (processes() != nullptr) {
        processes()->set_activity(fmt::format("run {} of '{}'", index + 1, row->name));
      }
      const std::optional<RunResult> made = row->make(index, on_images);
      if (!made) return std::optional<std::string>();
      for (const MeasuredRow& filled : row->result_rows) {
        (own_ ? *own_ : *log_).add(filled.name, index, to_json(made->at(filled.name)));
      }
      const MeasuredRow& last = row->result_rows.back();
      return std::optional(headline(last, made->at(last.name)));
    };
    return make_all(images, options_, runs_.has_run_folders, make);
  }

  const PreparedRuns& runs_;
  const ReproduceOptions& options_;
  std::map<std::string, const MeasuredRow*> filled_;
  std::optional<LockFile> lock_;
  std::optional<RunLog> log_, own_;  ///< What is made, and what another process than 0 adds.
};

}  // namespace

LockFile hold_folder(const fs::path& out, const Json& settings) {
  const fs::path folder = made_folder(out, settings);
  LockFile lock(folder);
  remove_leftovers(folder);
  claim(folder, settings);
  return lock;
}

bool make_rows(const PreparedRuns& runs, const ReproduceOptions& options,
               std::vector<MeasuredRow>& rows) {
  DistributedRuns shared(runs, options);
  if (!shared.make()) return false;
  if (!shared.is_rank_zero()) return true;
  rows = shared.rows();
  try {
    if (runs.finish) runs.finish(rows);
    return true;
  } catch (const Stopped&) {
    return false;
  }
}

}  // namespace moesaic
