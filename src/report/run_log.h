// SPDX-License-Identifier: Apache-2.0
// Log of the finished runs of an experiment in its folder, from which it resumes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

namespace moesaic {

/// The finished runs of an experiment in a file: {"<row>#<index>": result}.
class RunLog {
 public:
  using Json = nlohmann::ordered_json;
  /// Returns what is wrong with a row's entry, "" if nothing is.
  using Check = std::function<std::string(const std::string& row, const Json& entry)>;

  /// Reads the file if it exists. Invalid entries are dropped; then the file is kept as
  /// <file>.damaged, and a warning says so.
  RunLog(std::filesystem::path file, const Check& check);

  /// Writes entries that are added from now on to a file of their own, for who merges it.
  void write_apart(std::filesystem::path file);
  /// Adds the entries of such a file, if it is there, and deletes it.
  void merge(const std::filesystem::path& file, const Check& check);

  /// Returns the entry of a run, or nullptr if it is not finished.
  const Json* find(const std::string& row, int64_t index) const;
  /// Adds an entry. Thread-safe.
  void add(const std::string& row, int64_t index, const Json& entry);

 private:
  void write() const;

  std::filesystem::path file_;
  bool apart_ = false;
  std::map<std::string, Json> added_;
  std::mutex mutex_;
  std::map<std::string, Json> runs_;
};

}  // namespace moesaic
