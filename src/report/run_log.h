// SPDX-License-Identifier: Apache-2.0
// What an experiment of many runs keeps in its folder, so that it can go on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

namespace moesaic {

/// The finished runs of an experiment in a file: {"<row>#<index>": what a run came to}.
class RunLog {
 public:
  using Json = nlohmann::ordered_json;
  /// What is wrong with a row's entry, "" if nothing is.
  using Check = std::function<std::string(const std::string& row, const Json& entry)>;

  /// Reads the file, if it is there. Entries that are not sound are left out; then the file is kept
  /// as <file>.damaged, and a warning says so.
  RunLog(std::filesystem::path file, const Check& check);

  /// nullptr where the run is not finished.
  const Json* find(const std::string& row, int64_t index) const;
  /// May be called by several threads.
  void add(const std::string& row, int64_t index, const Json& entry);

 private:
  void write() const;

  std::filesystem::path file_;
  std::mutex mutex_;
  Json runs_ = Json::object();
};

}  // namespace moesaic
