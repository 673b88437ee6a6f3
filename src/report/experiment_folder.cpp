// SPDX-License-Identifier: Apache-2.0
#include "experiment_folder.h"

#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/config/difference.h"
#include "moesaic/config/document.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Adds to the "runs" of each those that only the other has: rows may join a folder.
void join_runs(Json& before, Json& now) {
  if (!before.is_object() || !before.contains("runs") || !before["runs"].is_object()) return;
  const auto add = [](const Json& from, Json& to) {
    for (const auto& [row, run] : from.items()) {
      if (!to.contains(row)) to[row] = run;
    }
  };
  add(before["runs"], now["runs"]);
  add(now["runs"], before["runs"]);
}

void check_output(const fs::path& out) {
  if (out.empty()) fail_usage("an experiment needs a folder; give --out");
  check_folder_path(out, "--out");
  if (!path_exists(out)) return;
  if (fs::exists(out / "config.json")) return;  // It names the experiment.
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    if (name == ".lock" || name == "elapsed.json") continue;
    fail_usage("{}: there is something already that is not this experiment; give another --out",
               out.string());
  }
}

fs::path made(const fs::path& out) {
  check_output(out);
  std::error_code error;
  create_folders(out, error);
  if (error) fail("{}: cannot make the folder: {}", out.string(), error.message());
  return fs::canonical(out);
}

}  // namespace

ExperimentFolder::ExperimentFolder(const fs::path& out) : path_(made(out)), lock_(path_) {}

void ExperimentFolder::claim(Json settings) const {
  const fs::path file = path_ / "config.json";
  if (fs::exists(file)) {
    auto found = find_json(read_text(file, kMaxListBytes, "a configuration"), kMaxListBytes);
    if (!found) fail_usage("{}: damaged: not JSON; give another --out", file.string());
    if (*found == settings) return;
    join_runs(*found, settings);
    const std::vector<Difference> changed = differences(*found, settings);
    if (!changed.empty()) {
      fail_usage(
          "{}: was made with other settings: {}; set back what changed or give another --out",
          path_.string(), describe(changed));
    }
  }
  write_atomic(file, settings.dump(2) + "\n");
}

}  // namespace moesaic
