// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "moesaic/base/file.h"

namespace moesaic {

/// The output folder of an experiment: made where it is missing, and locked while this lives.
class ExperimentFolder {
 public:
  /// Throws Error (usage) for an empty name, for a file, and for a folder that holds something
  /// without the config.json of an experiment. The lock and the time of a call that failed early
  /// count as nothing.
  explicit ExperimentFolder(const std::filesystem::path& out);

  const std::filesystem::path& path() const { return path_; }  ///< absolute

  /// Writes `settings` to config.json, or checks that they are those that the folder was made
  /// with. Throws Error (usage) where they are not.
  void claim(const nlohmann::ordered_json& settings) const;

 private:
  std::filesystem::path path_;
  LockFile lock_;
};

}  // namespace moesaic
