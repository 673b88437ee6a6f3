// SPDX-License-Identifier: Apache-2.0
// What an experiment has made, on disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "moesaic/base/file.h"
#include "moesaic/base/filesystem.h"

namespace moesaic {

/// The finished runs of an experiment in a file, from which it resumes: {"<row>#<index>": result}.
/// Each is added as a line of its own to <file>l, until fold() puts all of them into the file.
class RunLog {
 public:
  using Json = nlohmann::ordered_json;
  /// Returns what is wrong with a row's entry, "" if nothing is.
  using Check = std::function<std::string(const std::string& row, const Json& entry)>;

  /// Reads the files that exist. A log that is another process's is only read.
  RunLog(fs::path file, Check check, bool is_own = true);

  /// Adds valid entries. Returns what is wrong with the first of the others, "" without one.
  std::string take(const Json& entries);
  /// Adds the entries of other files and their lines, and deletes them.
  void merge(const std::set<fs::path>& files);

  /// Returns the entry of a run, or nullptr if it is not finished.
  const Json* find(const std::string& row, int64_t index) const;
  /// Adds an entry. Thread-safe.
  void add(const std::string& row, int64_t index, const Json& entry);

  /// Writes all entries to the file.
  void fold();
  void remove() const;
  std::string text() const;

 private:
  bool read(const fs::path& file, bool is_own);
  std::string take_lines(const fs::path& file);

  fs::path file_, lines_;
  Check check_;
  UniqueFd fd_;  ///< Of the lines.
  std::mutex mutex_;
  std::map<std::string, Json> runs_;
};

}  // namespace moesaic
