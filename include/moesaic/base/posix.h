// SPDX-License-Identifier: Apache-2.0
// The few wrappers that make POSIX calls safe to use: an owned descriptor, whole writes, errno as
// an Error.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace moesaic {

/// Owns a file descriptor and closes it.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept;
  void reset() noexcept;

 private:
  int fd_ = -1;
};

/// Throws Error(failure) "PATH: ACTION: what errno says".
[[noreturn]] void fail_errno(const std::filesystem::path& path, std::string_view action);
[[noreturn]] void fail_errno(const std::filesystem::path& path, std::string_view action, int error);

/// open(2) with O_CLOEXEC, repeated when a signal interrupts it. Empty on failure, with errno set.
UniqueFd try_open(const std::filesystem::path& path, int flags, unsigned mode = 0666);
/// The same; a failure is an Error that names the path.
UniqueFd open_file(const std::filesystem::path& path, int flags, unsigned mode = 0666);

/// Writes every byte or throws; a short write is carried on, so a full disk shows up as an Error.
void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path);

/// fsync of a file or folder. File systems that cannot sync a folder are accepted.
void sync_fd(int fd, const std::filesystem::path& path);
void sync_path(const std::filesystem::path& path);

}  // namespace moesaic
