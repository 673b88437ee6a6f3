// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "moesaic/base/file.h"

namespace moesaic {

/// Output folder of an experiment: created if missing, and locked during the object's lifetime.
class ExperimentFolder {
 public:
  /// Throws Error (usage) for an empty name, for a file, and for a folder with files but without
  /// the config.json of an experiment. The lock and time files of a call that failed early are
  /// ignored.
  explicit ExperimentFolder(const std::filesystem::path& out);

  const std::filesystem::path& path() const { return path_; }  ///< Absolute path.

  /// Writes `settings` to config.json, or compares them with those in it, whose "runs" they join.
  /// Throws Error (usage) if they differ in what both have.
  void claim(nlohmann::ordered_json settings) const;

 private:
  std::filesystem::path path_;
  LockFile lock_;
};

}  // namespace moesaic
