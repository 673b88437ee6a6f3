// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/posix.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <system_error>
#include <tuple>

#include "moesaic/base/file.h"
#include "moesaic/base/retry.h"

namespace moesaic {
namespace {

/// Returns whether an errno is of a disk, a network or a mount that does not answer; a mount that
/// is away has no file of that name.
bool is_transient(int error) {
  constexpr std::array kErrors = {EIO,       ESTALE,       EINTR,      EAGAIN,       ETIMEDOUT,
                                  ENETDOWN,  ENETUNREACH,  ENETRESET,  EHOSTDOWN,    EHOSTUNREACH,
                                  ENOTCONN,  ECONNREFUSED, ECONNRESET, ECONNABORTED, ESHUTDOWN,
                                  EREMOTEIO, ENOENT};
  return std::find(kErrors.begin(), kErrors.end(), error) != kErrors.end();
}

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

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  const int fd = other.release();  // May be of this very object.
  reset();
  fd_ = fd;
  return *this;
}

void UniqueFd::reset() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void fail_errno(const fs::path& path, std::string_view action, int error) {
  const std::string text = fmt::format("{}: {}: {}", without_staging(path).string(), action,
                                       std::generic_category().message(error));
  if (is_transient(error)) throw TransientError(text);
  throw IoError(text);
}

UniqueFd try_open(const fs::path& path, int flags) {
  return UniqueFd(TEMP_FAILURE_RETRY(::open(path.c_str(), flags | O_CLOEXEC, 0666)));
}

UniqueFd open_file(const fs::path& path, int flags) {
  UniqueFd fd = try_open(path, flags);
  if (!fd && errno == ELOOP && (flags & O_NOFOLLOW) != 0) {
    fail("{}: a link, which is not followed; remove it", without_staging(path).string());
  }
  if (!fd) fail_errno(path, (flags & O_CREAT) != 0 ? "cannot create" : "cannot open");
  return fd;
}

void write_all(int fd, std::span<const std::byte> bytes, const fs::path& path) {
  constexpr std::size_t kPiece = std::size_t{1} << 30;  // write(2) is limited to 2 GiB.
  while (!bytes.empty()) {
    const ssize_t n = TEMP_FAILURE_RETRY(::write(fd, bytes.data(), std::min(bytes.size(), kPiece)));
    if (n < 0) fail_errno(path, "cannot write");
    if (n == 0) fail_errno(path, "cannot write", ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void sync_fd(int fd, const fs::path& path) {
  if (TEMP_FAILURE_RETRY(::fsync(fd)) == 0 || errno == EINVAL || errno == ENOTSUP) return;
  fail_errno(path, "cannot sync to disk");
}

void sync_path(const fs::path& path) {
  const UniqueFd fd = open_file(path, O_RDONLY);
  sync_fd(fd.get(), path);
}

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
    const int error = TEMP_FAILURE_RETRY(::flock(fd.get(), operation)) == 0 ? 0 : errno;
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
