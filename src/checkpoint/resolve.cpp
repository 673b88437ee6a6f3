// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "manifest.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/store.h"

namespace moesaic {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStep = "step_";

struct Step {
  int64_t number = 0;
  fs::path folder;
};

/// Returns the step_N directories by descending N; links are ignored.
std::vector<Step> steps_in(const fs::path& folder) {
  std::vector<Step> steps;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const auto number = step_of(it->path());
    if (number && it->symlink_status().type() == fs::file_type::directory) {
      steps.push_back({*number, it->path()});
    }
  }
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
    return a.number != b.number ? a.number > b.number : a.folder < b.folder;
  });
  return steps;
}

/// Reads the first whole checkpoint of a run.
Checkpoint load_first_whole(const std::vector<Step>& steps, const fs::path& folder,
                            const LoadOptions& options) {
  std::string first_error;
  for (const Step& step : steps) {
    try {
      return load_checkpoint(step.folder, options);
    } catch (const Error& error) {
      log_warning("{}; passing over this checkpoint", error.what());
      if (first_error.empty()) first_error = error.what();
    }
  }
  fail("{}: none of its {} checkpoints is whole; the newest: {}", folder.string(), steps.size(),
       first_error);
}

}  // namespace

std::optional<int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kStep)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kStep.size(), end, step);
  return error == std::errc() && stop == end && step >= 0 ? std::optional(step) : std::nullopt;
}

std::string step_name(int64_t step) {
  return std::string(kStep) + std::to_string(step);
}

Checkpoint load_newest_checkpoint(const fs::path& given, const LoadOptions& options) {
  std::error_code error;
  if (given.empty()) fail_usage("the name of a run or a checkpoint must not be empty");
  if (!path_exists(given)) {
    fail_usage("{}: no such folder{}", given.string(), nearest_sibling(given));
  }
  if (!fs::is_directory(given, error)) {
    fail_usage("{}: not a folder; a run or a checkpoint is one", given.string());
  }
  if (path_exists(given / kManifestFile)) return load_checkpoint(given, options);
  for (const fs::path& folder : {given / "checkpoints", given}) {
    const std::vector<Step> steps = steps_in(folder);
    if (!steps.empty()) return load_first_whole(steps, folder, options);
  }
  const bool experiment = fs::is_directory(given / "train" / "checkpoints", error);
  fail_usage("{}: neither a checkpoint (no {}) nor a run (no checkpoints/step_<N>){}",
             given.string(), kManifestFile,
             experiment ? "; an experiment holds runs, e.g. " + (given / "train").string() : "");
}

void prune_old_checkpoints(const fs::path& checkpoints, int64_t keep) {
  if (keep < 1) fail_usage("at least 1 checkpoint has to be kept, not {}", keep);
  int64_t complete = 0;
  for (const Step& step : steps_in(checkpoints)) {
    if (complete < keep) {
      complete += fs::exists(step.folder / kManifestFile) ? 1 : 0;
      continue;
    }
    // Renamed first, so that no partially deleted checkpoint is ever visible.
    const fs::path aside = unique_sibling(step.folder);
    std::error_code error;
    fs::rename(step.folder, aside, error);
    if (!error) fs::remove_all(aside, error);
    if (error) log_warning("{}: cannot be deleted: {}", step.folder.string(), error.message());
  }
}

}  // namespace moesaic
