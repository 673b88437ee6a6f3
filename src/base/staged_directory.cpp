// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"

namespace moesaic {
namespace fs = std::filesystem;

namespace {

fs::path without_trailing_slash(fs::path path) {
  if (path.empty()) fail_usage("a staged folder needs a name");
  return path.has_filename() ? path : path.parent_path();
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_errno(to, "cannot rename into place");
}

// Exchanges two names atomically; returns false if the file system or kernel does not support it.
bool exchange(const fs::path& a, const fs::path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  fail_errno(b, "cannot exchange");
}

// Moves `fresh` to the path of `old` and returns where the old directory is now.
fs::path replace_folder(const fs::path& fresh, const fs::path& old) {
  if (exchange(fresh, old)) return fresh;
  const fs::path aside = unique_sibling(old).replace_extension(kReplacedSuffix);
  const std::string name = old.filename().string();
  // After a crash its name is all that tells where the old directory belongs.
  if (!aside.filename().string().starts_with("." + name + ".")) {
    fail(
        "{}: cannot replace: its name has {} bytes, which are too many on a file system without "
        "RENAME_EXCHANGE; give it one of at most 200 bytes",
        old.string(), name.size());
  }
  rename_or_fail(old, aside);
  if (::rename(fresh.c_str(), old.c_str()) != 0) {
    const int error = errno;
    ::rename(aside.c_str(), old.c_str());
    fail_errno(old, "cannot rename into place", error);
  }
  return aside;
}

}  // namespace

StagedDirectory::StagedDirectory(fs::path final_place)
    : final_place_(without_trailing_slash(std::move(final_place))) {
  std::error_code error;
  create_folders(final_place_.parent_path(), error);
  if (error) fail("{}: cannot create its folder: {}", final_place_.string(), error.message());
  staging_ = unique_sibling(final_place_);
  fs::create_directory(staging_, error);
  if (error) fail("{}: cannot create: {}", final_place_.string(), error.message());
}

StagedDirectory::~StagedDirectory() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(staging_, ignored);
}

void StagedDirectory::commit() {
  if (committed_) fail_usage("{}: committed twice", final_place_.string());
  sync_path(staging_);
  const fs::path parent = final_place_.has_parent_path() ? final_place_.parent_path() : ".";
  std::error_code error;
  if (!fs::exists(fs::symlink_status(final_place_, error))) {
    rename_or_fail(staging_, final_place_);
    committed_ = true;
    sync_path(parent);
    return;
  }
  if (!fs::is_directory(final_place_, error)) {
    fail("{}: cannot replace: it is there already and is not a folder", final_place_.string());
  }
  const fs::path old = replace_folder(staging_, final_place_);
  committed_ = true;
  sync_path(parent);
  // The new directory is in place; a remainder of the old one is not worth failing for.
  fs::remove_all(old, error);
  if (error) log_warning("{}: cannot remove: {}", old.string(), error.message());
}

}  // namespace moesaic
