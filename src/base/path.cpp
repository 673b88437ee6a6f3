// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/path.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

constexpr size_t kMaxNameBytes = 255;  // Linux's NAME_MAX.

/// Returns the status of the name itself or of its link target. Throws Error if the lookup fails.
fs::file_status look_up(const fs::path& path, bool follow) {
  std::error_code error;
  const fs::file_status status = follow ? fs::status(path, error) : fs::symlink_status(path, error);
  if (status.type() == fs::file_type::none) fail("{}: {}", path.string(), error.message());
  return status;
}

std::vector<std::string> names_in_folder(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool holds_nothing(const fs::path& folder) {
  std::error_code error;
  return fs::is_directory(folder, error) && fs::is_empty(folder, error) && !error;
}

/// Returns what is wrong with a path that only a shell or a browser would follow, else "".
std::string notation_problem(const fs::path& path) {
  const fs::path first = path.empty() ? path : *path.begin();
  if (path.empty() || fs::exists(status_of(first))) return "";
  if (first == "~" && path != first)
    return "'~' is not read as the home folder; write the whole path";
  const bool address = path.string().find("://") != std::string::npos;
  return address && first.string().ends_with(':') ? "a path is needed, not an address" : "";
}

void check_named(const fs::path& path, std::string_view what) {
  if (path.empty()) fail_usage("{}: must not be empty", what);
  const std::string problem = notation_problem(path);
  if (!problem.empty()) fail_usage("{}: '{}': {}", what, path.string(), problem);
}

/// Throws Error (usage) for a link to nothing, which `suggestion` ends.
void check_leads_somewhere(const fs::path& path, std::string_view what,
                           std::string_view suggestion) {
  std::error_code no_link, ignored;
  const fs::path target = fs::read_symlink(path, no_link);
  if (no_link || fs::exists(path, ignored)) return;
  fail_usage("{}: '{}' is a broken link to '{}'; {}", what, path.string(), target.string(),
             suggestion);
}

bool is_plain(unsigned char c) {
  return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
}

/// Throws Error where this user may make nothing in the folder.
void check_writable(const fs::path& folder, std::string_view what) {
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK, AT_EACCESS) == 0) return;
  fail("{}: nothing can be written in the folder '{}': {}", what, folder.string(),
       std::generic_category().message(errno));
}

}  // namespace

bool path_exists(const fs::path& path) {
  return fs::exists(look_up(path, true));
}

std::string nearest_sibling(const fs::path& path, PathForm as, bool (*takes)(const fs::path&)) {
  if (const std::string problem = notation_problem(path); !problem.empty()) return "; " + problem;
  // From the front, since a path of a file may have thousands of parts: the first that is missing.
  fs::path named, parent;
  auto part = path.begin();
  for (; part != path.end(); ++part) {
    if (part->empty()) continue;  // After a '/' at the end.
    parent = named;
    named /= *part;
    if (!fs::exists(status_of(named))) break;
  }
  const bool is_inner =
      part != path.end() &&
      std::any_of(std::next(part), path.end(), [](const auto& name) { return !name.empty(); });
  if (parent.empty()) parent = ".";
  if (!fs::is_directory(status_of(parent))) {
    return fmt::format("; '{}' is not a folder", parent.string());
  }
  std::error_code ignored;
  if (fs::is_symlink(named, ignored)) return "; it is a broken link";
  std::vector<std::string> names = names_in_folder(parent);
  auto near = nearest(named.filename().string(), names);
  while (near && !is_inner && takes != nullptr && !takes(parent / *near)) {
    std::erase(names, *near);
    near = nearest(named.filename().string(), names);
  }
  const bool by_name = as == PathForm::name && !is_inner;
  const std::string hint =
      near ? fmt::format("; did you mean '{}'?",
                         by_name ? *near : (named.parent_path() / *near).string())
           : "";
  return is_inner ? fmt::format("; nothing is at '{}'{}", named.string(), hint) : hint;
}

void check_input_file(const fs::path& path) {
  if (path.empty()) fail_usage("the name of a file must not be empty");
  const fs::file_status status = look_up(path, true);
  if (!fs::exists(status)) fail_usage("{}: no such file{}", path.string(), nearest_sibling(path));
  if (fs::is_directory(status)) {
    const std::string choice = did_you_mean("", names_in_folder(path));
    fail_usage("{}: a folder, not a file{}{}", path.string(), choice.empty() ? "" : "; ", choice);
  }
  if (!fs::is_regular_file(status)) fail_usage("{}: not a regular file", path.string());
}

std::string absolute_path(const std::string& text) {
  if (text.empty() || !path_exists(text)) return text;
  const fs::path path = fs::absolute(text).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).string();
}

void check_new_file(const fs::path& path, std::string_view what) {
  check_named(path, what);
  check_leads_somewhere(path, what, "name a new file");
  if (fs::exists(look_up(path, false))) {
    fail_usage("{}: '{}' already exists; name a new file", what, path.string());
  }
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  check_folder_path(folder, what);
  if (!path.has_filename() || !fs::is_directory(look_up(folder, true))) {
    fail_usage("{}: '{}': no such folder{}", what, folder.string(), nearest_sibling(folder));
  }
  check_writable(folder, what);
}

void check_new_folder(const fs::path& path, std::string_view what) {
  check_named(path, what);
  const fs::path folder = path.has_filename() ? path : path.parent_path();
  check_folder_path(folder.parent_path(), what);
  const bool relative = folder.filename() == "." || folder.filename() == "..";
  const fs::file_status status = look_up(folder, false);
  check_leads_somewhere(folder, what, "name a new or an empty folder");
  if (relative || (fs::exists(status) && (fs::is_symlink(status) || !holds_nothing(folder)))) {
    fail_usage("{}: '{}' already exists; name a new or an empty folder", what, path.string());
  }
  fs::path parent = fs::absolute(folder).parent_path();
  while (!fs::is_directory(status_of(parent)) && parent.has_relative_path()) {
    parent = parent.parent_path();
  }
  check_writable(parent, what);
}

void check_folder_path(const fs::path& path, std::string_view what) {
  if (!path.empty()) check_named(path, what);
  for (fs::path part = path; part.has_relative_path(); part = part.parent_path()) {
    const fs::file_status status = status_of(part);
    if (fs::is_directory(status)) return;
    if (fs::exists(status)) fail_usage("{}: '{}' is not a folder", what, part.string());
    check_leads_somewhere(part, what, "make that folder or remove the link");
  }
}

bool is_file_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         name.find('/') == name.npos && escaped(name) == name;
}

std::string file_name_problem(std::string_view key, std::string_view name) {
  return fmt::format("{} must be a file name without folders, of at most {} bytes, not {}", key,
                     kMaxNameBytes, printable(name));
}

bool is_portable_name(std::string_view name) {
  return is_file_name(name) && std::all_of(name.begin(), name.end(), is_plain);
}

std::string portable_name(std::string name) {
  std::ranges::replace_if(
      name, [](unsigned char c) { return !is_plain(c); }, '-');
  if (name.empty() || name.front() == '.') name.insert(0, "-");
  name.resize(std::min(name.size(), kMaxNameBytes));
  return name;
}

fs::path resource_root() {
  std::error_code ignored;
  if (const char* home = std::getenv("MOESAIC_HOME"); home != nullptr && *home != '\0') {
    if (!fs::is_directory(home, ignored)) fail_usage("MOESAIC_HOME={}: no such folder", home);
    return home;
  }
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path installed = program.parent_path().parent_path() / "share" / "moesaic";
  for (const fs::path& place : {installed, fs::path(MOESAIC_SOURCE_DIR)}) {
    if (fs::is_directory(place / "datasets", ignored)) return place;
  }
  fail("neither {} nor {} is there; set MOESAIC_HOME to the folder with models/ and datasets/",
       installed.string(), MOESAIC_SOURCE_DIR);
}

fs::path resource(std::string_view relative) {
  return resource_root() / relative;
}

std::vector<fs::path> model_files(std::string_view folder) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& family : fs::directory_iterator(resource("models"), ignored)) {
    for (const auto& file : fs::directory_iterator(family.path() / folder, ignored)) {
      if (file.path().extension() == ".json") files.push_back(file.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

fs::path download_folder(std::string_view kind) {
  const char* const data = std::getenv("MOESAIC_DATA");
  return (data != nullptr && *data != '\0' ? fs::path(data) : resource("datasets/cache")) / kind;
}

}  // namespace moesaic
