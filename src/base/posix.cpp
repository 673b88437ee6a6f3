// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/posix.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "moesaic/base/file.h"
#include "moesaic/base/retry.h"

namespace moesaic {

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int UniqueFd::release() noexcept {
  const int fd = fd_;
  fd_ = -1;
  return fd;
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
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  return UniqueFd(fd);
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
    const ssize_t n = ::write(fd, bytes.data(), std::min(bytes.size(), kPiece));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(path, "cannot write");
    if (n == 0) fail_errno(path, "cannot write", ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void sync_fd(int fd, const fs::path& path) {
  while (::fsync(fd) != 0) {
    if (errno == EINVAL || errno == ENOTSUP) return;
    if (errno != EINTR) fail_errno(path, "cannot sync to disk");
  }
}

void sync_path(const fs::path& path) {
  const UniqueFd fd = open_file(path, O_RDONLY);
  sync_fd(fd.get(), path);
}

}  // namespace moesaic
