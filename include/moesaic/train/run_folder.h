// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "moesaic/base/file.h"
#include "moesaic/checkpoint/store.h"

namespace moesaic {

/// The folder of a run, held by one process at a time:
///
///     config.json  metrics.jsonl  events.out.tfevents.*
///     checkpoints/step_<N>/    on the way and at the end, the last few
///     checkpoints/<phase>/     at the end of each phase
///     best/                    the best evaluation of the last phase
class RunFolder {
 public:
  /// Throws Error (usage) where `root` is a checkpoint, or holds anything and `resume` is false.
  /// What a run leaves that failed before its first checkpoint counts as nothing. Writes nothing.
  static void check(const std::filesystem::path& root, bool resume);

  /// The configuration that the run in `root` was started with, null where there is none.
  static nlohmann::ordered_json started_config(const std::filesystem::path& root);

  /// Is there any step_<N>, whole or not?
  static bool has_checkpoint(const std::filesystem::path& root);

  /// Makes and locks the folder, and clears away what a killed process left half-written and,
  /// without `resume`, what a failed start left. Throws
  /// Error that names the process which holds it.
  RunFolder(std::filesystem::path root, bool resume);

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path config() const { return root_ / "config.json"; }
  std::filesystem::path best() const { return root_ / "best"; }
  std::filesystem::path step_checkpoint(int64_t step) const;
  std::filesystem::path phase_checkpoint(const std::string& phase) const;

  /// Reads the step_<N> with the largest N that is whole; the damaged ones after it are deleted,
  /// since the run will write them anew. Throws Error where none is whole.
  Checkpoint load_newest_checkpoint() const;
  /// Deletes all step_<N> but the `count` newest.
  void keep_last(int64_t count) const;

 private:
  std::filesystem::path root_;
  LockFile lock_;
};

}  // namespace moesaic
