// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_folder.h"

#include <charconv>
#include <optional>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"

namespace moesaic {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kStep = "step_";

std::optional<int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kStep)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kStep.size(), end, step);
  return error == std::errc() && stop == end ? std::optional(step) : std::nullopt;
}

// The lock alone is what a process leaves that failed before its run began.
bool holds_something(const fs::path& root) {
  if (!fs::exists(root)) return false;
  if (!fs::is_directory(root)) return true;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.path().filename() != ".lock") return true;
  }
  return false;
}

fs::path made(fs::path folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail("{}: cannot make the folder: {}", folder.string(), error.message());
  return folder;
}

}  // namespace

void RunFolder::check(const fs::path& root, bool resume) {
  if (root.empty()) fail_usage("a run needs a folder; give --out");
  if (fs::exists(root) && !fs::is_directory(root)) fail_usage("{}: not a folder", root.string());
  if (!resume && holds_something(root)) {
    fail_usage("{}: there is something already; use --resume to go on with it, or another --out",
               root.string());
  }
}

nlohmann::ordered_json RunFolder::started_config(const fs::path& root) {
  const fs::path path = root / "config.json";
  if (!fs::exists(path)) return nullptr;
  return Document::from_file(path).root().to_json();
}

RunFolder::RunFolder(fs::path root, bool resume) : root_(made(std::move(root))), lock_(root_) {
  check(root_, resume);  // again: another process may have used it before the lock was ours
  remove_leftovers(root_);
  remove_leftovers(made(root_ / "checkpoints"));
}

fs::path RunFolder::step_checkpoint(int64_t step) const {
  return root_ / "checkpoints" / (std::string(kStep) + std::to_string(step));
}

fs::path RunFolder::phase_checkpoint(const std::string& phase) const {
  return root_ / "checkpoints" / phase;
}

bool RunFolder::has_checkpoint(const fs::path& root) {
  std::error_code ignored;
  for (fs::directory_iterator it(root / "checkpoints", ignored), end; it != end; ++it) {
    if (step_of(it->path())) return true;
  }
  return false;
}

fs::path RunFolder::newest_checkpoint() const {
  fs::path newest = resolve_checkpoint(root_);
  for (const auto& entry : fs::directory_iterator(root_ / "checkpoints")) {
    if (step_of(entry.path()).value_or(0) > *step_of(newest)) fs::remove_all(entry.path());
  }
  return newest;
}

void RunFolder::keep_last(int64_t count) const {
  prune_old_checkpoints(root_ / "checkpoints", count);
}

}  // namespace moesaic
