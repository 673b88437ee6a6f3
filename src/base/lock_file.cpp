// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"

namespace moesaic {
namespace {

std::string holder(int fd) {
  std::array<char, 32> text{};
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  std::string digits;
  for (ssize_t i = 0; i < n && text[i] >= '0' && text[i] <= '9'; ++i) digits += text[i];
  return digits.empty() ? "another process" : "process " + digits;
}

}  // namespace

LockFile::LockFile(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / ".lock";
  fd_ = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW);
  int result = 0;
  do {
    result = ::flock(fd_.get(), LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK) {
    fail("{}: in use by {}", folder.string(), holder(fd_.get()));
  }
  if (result != 0 && errno != ENOLCK && errno != ENOSYS && errno != ENOTSUP) {
    fail_errno(path, "cannot lock");
  }
  if (result != 0)
    log_warning("{}: this file system has no locks, going on without", path.string());
  // The file outlives the lock: if it were deleted, two holders could lock different files.
  const std::string text = fmt::format("{}\n", ::getpid());
  if (::ftruncate(fd_.get(), 0) != 0) fail_errno(path, "cannot write");
  write_all(fd_.get(), std::as_bytes(std::span(text)), path);
}

}  // namespace moesaic
