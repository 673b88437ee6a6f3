// SPDX-License-Identifier: Apache-2.0
// Thin, safe wrappers of POSIX: an owned descriptor, complete writes, locks, errno as an Error.
#pragma once

#include <cerrno>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/filesystem.h"

namespace moesaic {

/// A file that the system could not open or read, for now or for good; what it holds may be sound.
class IoError : public Error {
 public:
  /// `message` begins with the path.
  explicit IoError(const std::string& message) : Error(ErrorKind::failure, message) {}
};

/// Owns a file descriptor and closes it on destruction.
class UniqueFd {
 public:
  UniqueFd() = default;
  /// Takes ownership of `fd`.
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  /// Returns the descriptor, -1 without one.
  int get() const noexcept { return fd_; }
  /// Returns whether there is a descriptor.
  explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Gives the descriptor up without closing it, and returns it.
  int release() noexcept { return std::exchange(fd_, -1); }
  /// Closes the descriptor.
  void reset() noexcept;

 private:
  int fd_ = -1;
};

/// Throws IoError, "PATH: ACTION: <text of this errno>".
[[noreturn]] void fail_errno(const fs::path& path, std::string_view action, int error = errno);

/// Calls open(2) with O_CLOEXEC, retried on EINTR. Returns an empty UniqueFd on failure, errno set.
UniqueFd try_open(const fs::path& path, int flags);
/// Opens a file like try_open(). Throws Error (failure) with the path, also for a link that
/// O_NOFOLLOW in `flags` rules out.
UniqueFd open_file(const fs::path& path, int flags);

/// Writes all bytes, also after short writes. Throws Error (failure), e.g. if the disk is full.
void write_all(int fd, std::span<const std::byte> bytes, const fs::path& path);

/// Calls fsync on a file or directory. File systems that cannot sync a directory are accepted.
void sync_fd(int fd, const fs::path& path);
/// Opens the path and calls sync_fd().
void sync_path(const fs::path& path);

/// Opens a file to write to it in place, made if missing, with `flags` of open(2). Throws Error
/// (failure) for a symbolic link and for a file with other names (hard links), whose content must
/// not change under those names.
UniqueFd open_without_links(const fs::path& path, int flags);

/// Opens a file, made if missing and not through a link, and locks it with `operation` of flock(2).
/// Where its name meanwhile goes to another file, that one is taken, since others lock it. Returns
/// the errno of flock() beside it, 0 if it is locked.
std::pair<UniqueFd, int> open_locked(const fs::path& path, int operation);

/// Holds the lock file `folder`/.lock, never a symbolic link, for the object's lifetime. A second
/// holder gets an Error with the first one's process id. The kernel releases the lock when the
/// process exits or crashes.
class LockFile {
 public:
  /// Takes the lock. Throws Error (failure) where another process holds it; a file system without
  /// locks is accepted with a warning.
  explicit LockFile(const fs::path& folder);

 private:
  UniqueFd fd_;
};

}  // namespace moesaic
