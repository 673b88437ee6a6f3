// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

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
#include "moesaic/checkpoint/inspect.h"
#include "moesaic/checkpoint/store.h"

namespace moesaic {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStep = "step_";

/// Returns which checkpoints of phases, and best, lie beside those of steps, as a part of a line.
std::string others_beside(const fs::path& checkpoints) {
  std::vector<std::string> others;
  for (const fs::path& folder : {checkpoints.parent_path(), checkpoints}) {
    for (const fs::path& saved : saved_checkpoints(folder)) {
      if (!step_of(saved)) others.push_back(saved.string());
    }
  }
  return others.empty() ? "" : fmt::format("; its others are {}", fmt::join(others, ", "));
}

}  // namespace

Checkpoint load_newest_step(const fs::path& checkpoints,
                            const std::function<LoadOptions(const fs::path& step)>& options_of) {
  const std::vector<fs::path> steps = step_checkpoints(checkpoints);
  std::string first_error;
  for (const fs::path& step : steps) {
    try {
      return load_checkpoint(step, options_of(step));
    } catch (const DamagedCheckpoint& error) {
      log_warning("{}; passing over this checkpoint", error.what());
      if (first_error.empty()) first_error = error.what();
    } catch (const Error& error) {
      fail("{}; {} may be whole, so it is not passed over: make it readable or move it away",
           error.what(), step.filename().string());
    }
  }
  const std::string none =
      steps.size() == 1 ? "its only checkpoint of a step is not whole"
                        : fmt::format("none of its {} checkpoints of steps is whole", steps.size());
  fail("{}: {}; the newest: {}{}", checkpoints.string(), none, first_error,
       others_beside(checkpoints));
}

std::optional<int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kStep)) return std::nullopt;
  int64_t step = 0;
  const auto [stop, error] =
      std::from_chars(name.data() + kStep.size(), name.data() + name.size(), step);
  // "step_007" is somebody's own folder.
  const bool ours = error == std::errc() && step >= 0 && name == step_name(step);
  return ours ? std::optional(step) : std::nullopt;
}

std::string step_name(int64_t step) {
  return std::string(kStep) + std::to_string(step);
}

std::vector<fs::path> step_checkpoints(const fs::path& checkpoints) {
  std::vector<fs::path> steps;
  std::error_code error;
  for (fs::directory_iterator it(checkpoints, error), end; !error && it != end;
       it.increment(error)) {
    const bool folder = it->symlink_status().type() == fs::file_type::directory;
    if (folder && step_of(it->path())) steps.push_back(it->path());
  }
  const bool none =
      error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !none) fail("{}: cannot list: {}", checkpoints.string(), error.message());
  std::sort(steps.begin(), steps.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(*step_of(b), a) < std::pair(*step_of(a), b);
  });
  return steps;
}

std::vector<fs::path> saved_checkpoints(const fs::path& folder) {
  std::vector<fs::path> saved;
  std::error_code error, ignored;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const bool staged = it->path().filename().string().starts_with('.');
    if (!staged && fs::exists(it->path() / kManifestFile, ignored)) saved.push_back(it->path());
  }
  std::sort(saved.begin(), saved.end());
  return saved;
}

namespace {

/// Returns whether load_newest_checkpoint() may take what is there.
bool may_be_network(const fs::path& path) {
  return is_export(path) || path_exists(path / kManifestFile) || !step_checkpoints(path).empty() ||
         !step_checkpoints(path / "checkpoints").empty();
}

}  // namespace

std::string nearest_network(const fs::path& path) {
  return nearest_sibling(path, Sibling::path, may_be_network);
}

Checkpoint load_newest_checkpoint(const fs::path& given, const LoadOptions& options) {
  std::error_code error;
  if (given.empty()) fail_usage("the name of a run or a checkpoint must not be empty");
  if (!path_exists(given)) {
    if (const ForeignCheckpoint* foreign = find_foreign(given)) {
      fail_usage("{}: a checkpoint of {}; first: {} {} --out FOLDER", given.string(),
                 foreign->project, foreign->import_command, given.string());
    }
    fail_usage("{}: no such folder{}", given.string(), nearest_network(given));
  }
  if (is_export(given)) return load_export(given, options);
  if (!fs::is_directory(given, error)) {
    fail_usage(
        "{}: neither a folder of a run, a checkpoint or an export nor an export in a file "
        "(.safetensors, TorchScript)",
        given.string());
  }
  if (path_exists(given / kManifestFile)) return load_checkpoint(given, options);
  for (const fs::path& folder : {given / "checkpoints", given}) {
    if (step_checkpoints(folder).empty()) continue;
    return load_newest_step(folder, [&](const fs::path&) { return options; });
  }
  const bool experiment = fs::is_directory(given / "train" / "checkpoints", error);
  fail_usage(
      "{}: neither a checkpoint (no {}) nor a run (no checkpoints/step_<N>) nor an export (no "
      "preprocess.json){}",
      given.string(), kManifestFile,
      experiment ? "; an experiment holds runs, e.g. " + (given / "train").string() : "");
}

void prune_old_checkpoints(const fs::path& checkpoints, int64_t keep) {
  if (keep < 1) fail_usage("at least 1 checkpoint has to be kept, not {}", keep);
  int64_t complete = 0;
  for (const fs::path& step : step_checkpoints(checkpoints)) {
    if (!fs::exists(step / kManifestFile)) continue;  // No checkpoint.
    if (complete++ < keep) continue;
    // Renamed first, so that no partially deleted checkpoint is ever visible.
    const fs::path aside = unique_sibling(step);
    std::error_code error;
    fs::rename(step, aside, error);
    if (!error) fs::remove_all(aside, error);
    if (error) log_warning("{}: cannot be deleted: {}", step.string(), error.message());
  }
}

}  // namespace moesaic
