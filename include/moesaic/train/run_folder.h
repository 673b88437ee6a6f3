// SPDX-License-Identifier: Apache-2.0
// The folder of a run, and the record of its data, by which a resume detects changes.
#pragma once

#include <chrono>
#include <optional>

#include "moesaic/base/posix.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/formats/tensorboard.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

/// Marks of a split. Hashes are empty where there is nothing to read, or nothing that is here.
struct DataRecord {
  std::vector<std::string> classes;
  int64_t examples = 0;
  std::string shards;  ///< Hash of the numbers of images of all shards.
  std::string labels;  ///< Hash of the labels in their order.
  std::string files;   ///< Hash of names and sizes of all files of images, in order.
  std::string images;  ///< Hash of what some of them hold, which are spread over the data.
};
void describe(auto& f, DataRecord& c) {
  f("classes", c.classes, "names of the classes, in order");
  f("examples", c.examples, "number of examples in the split", required, at_least(0));
  f("shards", c.shards, "hash of the shards' numbers of images");
  f("labels", c.labels, "hash of the labels in order");
  f("files", c.files, "hash of names and sizes of all image files in order");
  f("images", c.images, "hash of some image files");
}

/// The document data.json in a run's folder.
struct RunData {
  std::map<std::string, DataRecord> splits;  ///< Records by "DATA SPLIT".

  /// Returns the record of a split, or null without one.
  const DataRecord* find(const std::string& data, const std::string& split) const;
};
void describe(auto& f, RunData& c) {
  f("splits", c.splits, "records of each split of the run's data");
}

/// Reads up to two million labels, the sizes of all image files, and up to 64 of these files, which
/// are at equal distances; of large ones fewer, so that they are 64 MiB in all or one file. Without
/// `reads_shards` no image and no label of data in shards is asked for, since it may have to be
/// fetched. Of endless data there is nothing but the number of examples that count as an epoch.
DataRecord data_record(const Dataset& data, bool reads_shards = true);

/// Returns the names of `a` that `b` lacks.
std::vector<std::string> lacking_in(std::vector<std::string> b, const std::vector<std::string>& a);

/// Returns in which way data are not those of the record, e.g. "had 24 examples and has 25 now", or
/// "" where they are the same as far as both know.
std::string difference_of(const DataRecord& before, const DataRecord& now);

/// Returns name and split of all data that the phases use, each once.
std::vector<std::pair<std::string, std::string>> used_splits(const RunConfig& config,
                                                             const DatasetCache& datasets);

/// Treats the data of a moved project as those of the run. Where a phase has another path than in
/// `started`, and `before` has labels to compare, the record is copied to the new path, which
/// replaces the old one in `started`; so does that of an init or on_entry.prune.pretrained whose
/// old path is missing. Returns the old path of each such new one; record_data() compares what lies
/// there.
std::map<std::string, std::string> follow_moved_data(const RunConfig& now, Json& started,
                                                     RunData& before);

/// Called with a change since the run began, e.g. "has other image files".
using DataChanged = std::function<void(const std::string& name, const std::string& split,
                                       const std::string& change)>;

/// Returns the marks of all data that a run uses, after a call of `changed` for each difference
/// from those of `before`; classes in another order are none. With `warns`, set in one of several
/// processes, warns of training examples of one class alone, and of files read under two names, in
/// different splits or classes, with 16 bytes of memory per image.
RunData record_data(const RunConfig& config, DatasetCache& datasets, bool warns,
                    const RunData& before = {}, const DataChanged& changed = {});

/// The folder of a run, held by one process at a time:
///
///     config.json  data.json  metrics.jsonl  events.out.tfevents.*  trace.json (of --profile)
///     checkpoints/step_<N>/    during training and at the end, the newest few
///     checkpoints/step_<N>.damaged/   what a resume skipped
///     checkpoints/<phase>/     at the end of each phase
///     best/                    the best evaluation of the last phase
class RunFolder {
 public:
  /// Throws Error (usage) if `root` is a checkpoint, holds a link where a run writes, or is not
  /// empty and `resume` is false. Files of a run that failed before its first checkpoint do not
  /// count. Writes nothing.
  static void check(const fs::path& root, bool resume);

  /// Returns the configuration that the run in `root` was started with, null without a run.
  static Json started_config(const fs::path& root);

  /// Returns the record of the data of the run in `root`; nothing for a run of 0.2.0 or before.
  static std::optional<RunData> started_data(const fs::path& root);

  /// Returns whether there is any step_<N>, complete or damaged.
  static bool has_checkpoint(const fs::path& root) {
    return !step_checkpoints(root / "checkpoints").empty();
  }

  /// Returns the advice, as the end of a message, to use another folder where a run cannot
  /// continue.
  static std::string other_folder_hint(const fs::path& root);

  /// Creates and locks the folder, cleans up after a killed process (remove_leftovers()) and,
  /// without `resume`, after a failed start. Throws Error that names the process that holds the
  /// lock.
  RunFolder(fs::path root, bool resume);
  /// Names the files of a folder that process 0 of the run holds. Writes nothing.
  static RunFolder from_rank_zero(fs::path root);

  /// Returns the folder.
  const fs::path& root() const { return root_; }
  /// Returns the folder of the checkpoint with the best metric.
  fs::path best() const { return root_ / "best"; }
  /// Returns the folder of the checkpoint after this step.
  fs::path step_checkpoint(int64_t step) const { return root_ / "checkpoints" / step_name(step); }
  /// Returns the folder of the checkpoint at the end of this phase.
  fs::path phase_checkpoint(const std::string& phase) const {
    return root_ / "checkpoints" / phase;
  }

  /// Renames the step_<N> after `resumed`, which are damaged, to step_<N>.damaged, since the run
  /// will write them again.
  void set_damaged_aside(const fs::path& resumed) const;
  /// Deletes all step_<N> except the `count` newest.
  void keep_last(int64_t count) const { remove_old_checkpoints(root_ / "checkpoints", count); }

 private:
  RunFolder() = default;

  fs::path root_;
  std::optional<LockFile> lock_;  ///< Unset where another process of the run holds it.
};

/// Writes the metrics of a run to metrics.jsonl, one JSON object per line, and to TensorBoard. The
/// lines hold only values that a repeated run reproduces; times go to TensorBoard alone.
class MetricsWriter {
 public:
  /// Opens `folder`/metrics.jsonl, never a link of either kind, and truncates it to its first
  /// `keep_lines` lines: a resumed run writes the rest again.
  MetricsWriter(const fs::path& folder, int64_t keep_lines);

  /// Writes a line {"kind", "step", ...fields}; numeric fields also become the TensorBoard scalars
  /// "<tag>/<field>", and the kExpertMetrics of "routing" histograms, "<tag>/block_<N>/load", and
  /// for the kind "eval" images of all layers by experts, "<tag>/experts/load". Lines that are not
  /// of one curve need different tags.
  void write(const std::string& kind, int64_t step, const Json& fields, const std::string& tag);
  /// Writes a scalar to TensorBoard only.
  void add_scalar(const std::string& tag, double value, int64_t step) {
    events_.add_scalar(tag, value, step);
  }
  /// Flushes everything to disk, so that a checkpoint can rely on it.
  void sync();

  /// Returns the number of lines in the file.
  int64_t lines() const { return lines_; }

 private:
  fs::path path_;
  UniqueFd fd_;
  int64_t lines_ = 0;
  EventWriter events_;
};

/// Images per second between two lines of metrics.
class Throughput {
 public:
  /// Adds images that were trained on.
  void add(int64_t images) { images_ += images; }
  /// Returns the rate since the last take() or restart(), then starts again.
  double take() {
    const Throughput ended = std::exchange(*this, {});
    const std::chrono::duration<double> time = begin_ - ended.begin_;
    return static_cast<double>(ended.images_) / time.count();
  }
  /// Starts again without a rate.
  void restart() { *this = {}; }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int64_t images_ = 0;
};

/// Rounds `value` to so many significant digits, by default the precision of float32.
double rounded(double value, int digits = 7);
/// Returns an object with all numbers in it and in its objects rounded.
Json rounded_numbers(Json json);

}  // namespace moesaic
