// SPDX-License-Identifier: Apache-2.0
#include "run_log.h"

#include <fmt/format.h>

#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"
#include "moesaic/config/document.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

std::string run_key(const std::string& row, int64_t index) {
  return fmt::format("{}#{}", row, index);
}

}  // namespace

RunLog::RunLog(fs::path file, const Check& check) : file_(std::move(file)) {
  if (!fs::exists(file_)) return;
  const std::string text = read_text(file_, kMaxListBytes, "a list of runs");
  Json found = find_json(text, kMaxListBytes).value_or(nullptr);
  std::string problem = found.is_object() ? "" : "it is no JSON object";
  if (!found.is_object()) found = Json::object();
  for (const auto& [key, entry] : found.items()) {
    const std::string wrong = check(key.substr(0, key.rfind('#')), entry);
    if (wrong.empty()) runs_[key] = entry;
    if (!wrong.empty() && problem.empty()) problem = fmt::format("'{}': {}", key, wrong);
  }
  if (problem.empty()) return;
  const fs::path kept = set_aside(file_, "damaged");
  write();
  log_warning("{}: damaged: {}; it is kept as {}, and what is lost is made again", file_.string(),
              problem, kept.filename().string());
}

const RunLog::Json* RunLog::find(const std::string& row, int64_t index) const {
  const auto found = runs_.find(run_key(row, index));
  return found == runs_.end() ? nullptr : &found->second;
}

void RunLog::write_apart(fs::path file) {
  file_ = std::move(file);
  apart_ = true;
}

void RunLog::merge(const fs::path& file, const Check& check) {
  if (!fs::exists(file)) return;
  const RunLog other(file, check);
  for (const auto& [key, entry] : other.runs_) runs_[key] = entry;
  write();
  fs::remove(file);
}

void RunLog::add(const std::string& row, int64_t index, const Json& entry) {
  const std::lock_guard lock(mutex_);
  runs_[run_key(row, index)] = entry;
  if (apart_) added_[run_key(row, index)] = entry;
  write();
}

void RunLog::write() const {
  write_atomic(file_, Json(apart_ ? added_ : runs_).dump(1) + "\n");
}

}  // namespace moesaic
