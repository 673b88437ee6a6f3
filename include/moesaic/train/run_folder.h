// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "moesaic/base/file.h"
#include "moesaic/base/posix.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/formats/tensorboard.h"
#include "moesaic/train/run_data.h"

namespace moesaic {

/// The folder of a run, held by one process at a time:
///
///     config.json  data.json  metrics.jsonl  events.out.tfevents.*
///     checkpoints/step_<N>/    during training and at the end, the newest few
///     checkpoints/step_<N>.damaged/    what a resume passed over, kept for its user
///     checkpoints/<phase>/     at the end of each phase
///     best/                    the best evaluation of the last phase
class RunFolder {
 public:
  /// Throws Error (usage) if `root` is a checkpoint, holds a link where a run writes, or is not
  /// empty and `resume` is false. Files of a run that failed before its first checkpoint do not
  /// count. Writes nothing.
  static void check(const std::filesystem::path& root, bool resume);

  /// Returns the configuration that the run in `root` was started with, null without a run.
  static nlohmann::ordered_json started_config(const std::filesystem::path& root);

  /// Returns what the run in `root` remembers of its data; nothing of a run of 0.2.0 or before.
  static std::optional<RunData> started_data(const std::filesystem::path& root);

  /// Returns whether there is any step_<N>, complete or damaged.
  static bool has_checkpoint(const std::filesystem::path& root);

  /// Creates and locks the folder, cleans up after a killed process (remove_leftovers()) and,
  /// without `resume`, after a failed start. Throws Error that names the process that holds the
  /// lock.
  RunFolder(std::filesystem::path root, bool resume);
  /// Names the files of a folder that process 0 of the run holds. Writes nothing.
  static RunFolder of_leader(std::filesystem::path root);

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path config() const { return root_ / "config.json"; }
  std::filesystem::path data() const { return root_ / "data.json"; }
  std::filesystem::path best() const { return root_ / "best"; }
  std::filesystem::path step_checkpoint(int64_t step) const;
  std::filesystem::path phase_checkpoint(const std::string& phase) const;

  /// Renames the step_<N> after `resumed`, which are damaged, to step_<N>.damaged, since the run
  /// will write them again.
  void set_damaged_aside(const std::filesystem::path& resumed) const;
  /// Deletes all step_<N> except the `count` newest.
  void keep_last(int64_t count) const;

 private:
  RunFolder() = default;

  std::filesystem::path root_;
  std::optional<LockFile> lock_;  ///< Unset where another process of the run holds it.
};

/// Writes the metrics of a run to metrics.jsonl, one JSON object per line, and to TensorBoard. The
/// lines hold only values that a repeated run reproduces; times go to TensorBoard alone.
class Recorder {
 public:
  /// Opens `folder`/metrics.jsonl, never a link, and truncates it to its first `keep_lines` lines:
  /// a resumed run writes the rest again.
  Recorder(const std::filesystem::path& folder, int64_t keep_lines);

  /// Writes a line {"kind", "step", ...fields}; numeric fields also become the TensorBoard scalars
  /// "<tag>/<field>". Lines that are not of one curve need different tags.
  void write(const std::string& kind, int64_t step, const nlohmann::ordered_json& fields,
             const std::string& tag);
  /// Writes a scalar to TensorBoard only.
  void scalar(const std::string& tag, double value, int64_t step);
  /// Flushes everything to disk, so that a checkpoint can rely on it.
  void sync();

  /// Returns the number of lines in the file.
  int64_t lines() const { return lines_; }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  int64_t lines_ = 0;
  EventWriter events_;
};

/// Images per second between two lines of metrics.
class Throughput {
 public:
  void add(int64_t images) { images_ += images; }
  /// Returns the rate since the last take() or restart(), then starts again.
  double take();
  void restart();

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int64_t images_ = 0;
};

/// Rounds `value` to seven significant digits, the precision of float32.
double rounded(double value);

}  // namespace moesaic
