// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"

namespace moesaic {
namespace fs = std::filesystem;
namespace {

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

/// Returns NAME of a name ".NAME.<process>-<number><suffix>", which unique_sibling() makes; "" of
/// any other one.
std::string_view staged_name(std::string_view name, std::string_view suffix) {
  if (!name.starts_with('.') || !name.ends_with(suffix)) return {};
  name.remove_prefix(1);
  name.remove_suffix(suffix.size());
  const size_t dot = std::min(name.rfind('.'), name.size());
  const size_t dash = std::min(name.find('-', dot), name.size());
  if (dash == name.size() || !is_number(name.substr(dot + 1, dash - dot - 1))) return {};
  return is_number(name.substr(dash + 1)) ? name.substr(0, dot) : std::string_view();
}

void check(const std::error_code& error, const fs::path& path, std::string_view what) {
  if (error) fail("{}: {}: {}", path.string(), what, error.message());
}

/// Renames a folder that a commit() had taken away back to its place, where nothing is there.
/// Returns whether it did.
bool put_back(const fs::path& aside, const fs::path& place) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(place, error))) return false;
  fs::rename(aside, place, error);
  check(error, place, "cannot be put back");
  sync_path(place.parent_path());
  return true;
}

}  // namespace

void remove_leftovers(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  check(error, folder, "cannot list");
  for (const fs::path& entry : entries) {
    const std::string name = entry.filename().string();
    const std::string_view replaced = staged_name(name, kReplacedSuffix);
    if (replaced.empty() && staged_name(name, kStagingSuffix).empty()) continue;
    if (!replaced.empty() && put_back(entry, folder / replaced)) continue;
    fs::remove_all(entry, error);
    check(error, entry, "cannot remove");
  }
}

fs::path set_aside(const fs::path& path, std::string_view what) {
  std::error_code error;
  fs::path place = fmt::format("{}.{}", path.string(), what);
  for (int count = 2; fs::exists(fs::symlink_status(place, error)); ++count) {
    place = fmt::format("{}.{}-{}", path.string(), what, count);
  }
  fs::rename(path, place, error);
  check(error, path, "cannot be renamed");
  return place;
}

bool is_set_aside(const fs::path& path, std::string_view what) {
  std::string end = path.extension().string();
  if (const size_t dash = end.rfind('-'); dash != end.npos && is_number(&end[dash + 1])) {
    end.resize(dash);
  }
  return end == fmt::format(".{}", what);
}

void create_folders(const fs::path& folder, std::error_code& error) {
  error.clear();
  if (folder.empty()) return;
  std::vector<fs::path> parents;
  for (fs::path part = folder; !part.empty() && !fs::is_directory(part, error);
       part = part.parent_path()) {
    parents.push_back(part.has_parent_path() ? part.parent_path() : ".");
  }
  fs::create_directories(folder, error);
  for (const fs::path& parent : parents) {
    if (!error) sync_path(parent);
  }
}

}  // namespace moesaic
