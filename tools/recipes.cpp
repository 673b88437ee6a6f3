// SPDX-License-Identifier: Apache-2.0
#include "recipes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "command_line.h"
#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/base/process.h"
#include "moesaic/base/suggestions.h"

namespace moesaic::tools {
namespace {

using Names = std::vector<std::string>;

Names json_files(const fs::path& folder) {
  Names paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".json") paths.push_back(it->path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// Returns the path from the current folder where it is below that.
std::string shortened(const std::string& path) {
  const std::string near = fs::proximate(path).string();
  return near.starts_with("..") ? path : near;
}

[[noreturn]] void refuse_folder(const fs::path& folder) {
  const std::string name = shell_quoted(folder.string());
  if (fs::exists(folder / "MANIFEST.json")) {
    fail_usage("train: {}: a checkpoint, not a recipe; give a recipe with init={}", folder.string(),
               name);
  }
  if (fs::is_directory(folder / "checkpoints") && fs::exists(folder / "config.json")) {
    fail_usage("train: {}: a run, not a recipe; resume it by: {} train {} --out {} --resume",
               folder.string(), called_as(), shell_quoted((folder / "config.json").string()), name);
  }
  if (fs::is_directory(folder / "train")) {
    fail_usage("train: {}: a folder, not a recipe; give a recipe with phases.0.data={}",
               folder.string(), shell_quoted((folder / "").string()));
  }
  const Names recipes = json_files(folder);
  fail_usage("train: {}: a folder, not a recipe; {}", folder.string(),
             recipes.empty() ? "see moesaic list recipes" : did_you_mean("", recipes));
}

}  // namespace

Names recipe_paths() {
  const std::vector<fs::path> files = model_files("recipes");
  return {files.begin(), files.end()};
}

void check_recipe(const fs::path& path) {
  if (fs::is_directory(path)) refuse_folder(path);
  if (path.empty() || path_exists(path)) return check_input_file(path);
  const Names known = recipe_paths();
  Names stems, meant;
  for (const std::string& recipe : known) stems.push_back(fs::path(recipe).stem().string());
  std::string hint = nearest_sibling(path, PathForm::path, [](const fs::path& sibling) {
    return sibling.extension() == ".json" && fs::is_regular_file(sibling);
  });
  const std::string stem = path.stem().string();
  const auto near = hint.empty() ? nearest(stem, stems) : std::optional(stem);
  for (size_t i = 0; near && i < known.size(); ++i) {
    if (stems[i] == *near) meant.push_back(shortened(known[i]));
  }
  if (meant.size() == 1) hint = fmt::format("; did you mean '{}'?", meant.front());
  if (meant.size() > 1) hint = fmt::format("; choose one of {}", fmt::join(meant, ", "));
  if (hint.empty()) hint = "; see moesaic list recipes";
  fail_usage("train: {}: no such file{}", path.string(), hint);
}

}  // namespace moesaic::tools
