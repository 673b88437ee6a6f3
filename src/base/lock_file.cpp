// SPDX-License-Identifier: Apache-2.0
// Files that are written to in place, and locks.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/filesystem.h"
#include "moesaic/base/log.h"
#include "moesaic/base/text.h"

namespace moesaic {

namespace {

/// Returns the number of the process that wrote the file, "" of an empty file, and nothing of a
/// file that holds something else.
std::optional<std::string> holder(int fd) {
  std::array<char, 32> text{};
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  if (size < 0 || size == std::ssize(text)) return std::nullopt;  // A number is shorter.
  std::string number(text.data(), static_cast<size_t>(size));
  if (number.ends_with('\n')) number.pop_back();
  return number.empty() || is_digits(number) ? std::optional(number) : std::nullopt;
}

}  // namespace

UniqueFd open_without_links(const fs::path& path, int flags) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) == 0 && !S_ISLNK(found.st_mode)) {
    if (!S_ISREG(found.st_mode)) fail("{}: not a regular file; remove it", path.string());
    if (found.st_nlink > 1) {
      fail(
          "{0}: has {1} names (hard links), all of which would show what is written; remove this "
          "name, or copy the file: cp -p '{0}' '{0}.copy' && mv '{0}.copy' '{0}'",
          path.string(), found.st_nlink);
    }
  }
  return open_file(path, flags | O_CREAT | O_NOFOLLOW);
}

std::pair<UniqueFd, int> open_locked(const fs::path& path, int operation) {
  constexpr int kTries = 100;  // A file system may give its files no lasting numbers.
  for (int tries = 1;; ++tries) {
    UniqueFd fd = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW);
    int error = 0;
    do {
      error = ::flock(fd.get(), operation) == 0 ? 0 : errno;
    } while (error == EINTR);
    struct stat own {
    }, named{};
    const bool same = ::fstat(fd.get(), &own) == 0 && ::stat(path.c_str(), &named) == 0 &&
                      own.st_ino == named.st_ino && own.st_dev == named.st_dev;
    if (!same && tries == kTries) {
      log_warning("{}: cannot tell whether this is the file that others lock", path.string());
    }
    if (same || tries == kTries) return {std::move(fd), error};
  }
}

LockFile::LockFile(const fs::path& folder) {
  const fs::path path = folder / ".lock";
  int error = 0;
  std::tie(fd_, error) = open_locked(path, LOCK_EX | LOCK_NB);
  // A file with other names (hard links) may be a backup's or somebody's text. It locks as well as
  // any, so that this is no reason to refuse the folder, and so does a file with other content.
  // Only the number of the holder is not written to it.
  std::error_code unknown;
  const bool alone = fs::hard_link_count(path, unknown) == 1;
  const std::optional<std::string> number = alone ? holder(fd_.get()) : std::nullopt;
  if (error == EWOULDBLOCK) {
    fail("{}: in use by {}", folder.string(),
         number && !number->empty() ? "process " + *number : "another process");
  }
  if (error != 0 && error != ENOLCK && error != ENOSYS && error != ENOTSUP) {
    fail_errno(path, "cannot lock", error);
  }
  if (error != 0) {
    log_warning("{}: this file system does not support locks; continuing without one",
                path.string());
  }
  if (!number) return;
  const std::string text = fmt::format("{}\n", ::getpid());
  if (::ftruncate(fd_.get(), 0) != 0) fail_errno(path, "cannot write");
  write_all(fd_.get(), std::as_bytes(std::span(text)), path);
}

}  // namespace moesaic
