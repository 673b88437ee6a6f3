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

void ExperimentFolder::claim(const nlohmann::ordered_json& settings) const {
  const fs::path file = path_ / "config.json";
  if (!fs::exists(file)) return write_atomic(file, settings.dump(2) + "\n");
  const auto found = find_json(read_text(file, kMaxListBytes, "a configuration"), kMaxListBytes);
  if (!found) fail_usage("{}: damaged: not JSON; give another --out", file.string());
  if (*found == settings) return;
  fail_usage("{}: was made with other settings: {}; set back what changed or give another --out",
             path_.string(), describe(differences(*found, settings)));
}

}  // namespace moesaic
