// SPDX-License-Identifier: Apache-2.0
#include "run_log.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <span>
#include <sstream>
#include <utility>

#include "moesaic/base/log.h"
#include "moesaic/config/document.h"

namespace moesaic {
namespace {

std::string key_of(const std::string& row, int64_t index) {
  return fmt::format("{}#{}", row, index);
}

fs::path lines_file(const fs::path& file) {
  return file.string() + "l";
}

void remove_log(const fs::path& file) {
  for (const fs::path& path : {file, lines_file(file)}) fs::remove(path);
}

void keep_damaged(const fs::path& file, const std::string& problem) {
  const fs::path kept = set_aside(file, "damaged");
  log_warning("{}: corrupt: {}; it is kept as {}, and lost runs are repeated", file.string(),
              problem, kept.filename().string());
}

}  // namespace

RunLog::RunLog(fs::path file, Check check, bool is_own)
    : file_(std::move(file)), lines_(lines_file(file_)), check_(std::move(check)) {
  if (read(file_, is_own) && is_own) fold();
}

/// Adds the entries of a file and its lines. Of one's own, a file with invalid entries is kept as
/// <file>.damaged, and a warning says so. Returns whether the file is to be written.
bool RunLog::read(const fs::path& file, bool is_own) {
  const fs::path lines = lines_file(file);
  const bool has_lines = fs::exists(lines);
  std::string problem;
  if (fs::exists(file)) {
    const std::string text = read_text(file, kMaxListBytes, "a list of runs");
    problem = take(find_json(text, kMaxListBytes).value_or(nullptr));
  }
  const std::string problem_of_lines = has_lines ? take_lines(lines) : "";
  if (is_own && !problem.empty()) keep_damaged(file, problem);
  if (is_own && !problem_of_lines.empty()) keep_damaged(lines, problem_of_lines);
  return has_lines || !problem.empty();
}

/// Adds the entries of the lines. Returns what is wrong with the first one that is not valid; a
/// kill may have cut the last.
std::string RunLog::take_lines(const fs::path& file) {
  std::string problem;
  std::istringstream lines(read_text(file, kMaxListBytes, "lines of runs"));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const auto json = find_json(line, kMaxListBytes);
    const std::string wrong = take(json.value_or(nullptr));
    if (problem.empty() && (json || !lines.eof())) problem = wrong;
  }
  return problem;
}

std::string RunLog::take(const Json& entries) {
  std::string problem;
  if (!entries.is_object()) return "it is not a JSON object";
  for (const auto& [key, entry] : entries.items()) {
    const std::string wrong = check_(key.substr(0, key.rfind('#')), entry);
    if (wrong.empty()) runs_[key] = entry;
    if (!wrong.empty() && problem.empty()) problem = fmt::format("'{}': {}", key, wrong);
  }
  return problem;
}

void RunLog::merge(const std::set<fs::path>& files) {
  for (const fs::path& file : files) read(file, /*is_own=*/true);
  if (!files.empty()) fold();
  for (const fs::path& file : files) remove_log(file);
}

const RunLog::Json* RunLog::find(const std::string& row, int64_t index) const {
  const auto found = runs_.find(key_of(row, index));
  return found == runs_.end() ? nullptr : &found->second;
}

void RunLog::add(const std::string& row, int64_t index, const Json& entry) {
  const std::lock_guard lock(mutex_);
  const std::string key = key_of(row, index);
  runs_[key] = entry;
  if (!fd_) {
    fd_ = open_without_links(lines_, O_WRONLY | O_APPEND);
    sync_path(lines_.parent_path());
  }
  // Led by a line break, so that one that a full disk has cut harms no other.
  const std::string line = "\n" + Json::object({{key, entry}}).dump();
  write_all(fd_.get(), std::as_bytes(std::span(line)), lines_);
  sync_fd(fd_.get(), lines_);
}

void RunLog::fold() {
  write_atomic(file_, text());
  fd_.reset();
  fs::remove(lines_);
}

void RunLog::remove() const {
  remove_log(file_);
}

std::string RunLog::text() const {
  return Json(runs_).dump(1) + "\n";
}

}  // namespace moesaic
