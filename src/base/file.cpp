// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <system_error>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace fs = std::filesystem;

namespace {

struct stat status_of(const UniqueFd& fd, const fs::path& path) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_errno(path, "cannot examine");
  return status;
}

// Appends the next piece of the file; returns false at its end.
bool append_piece(const UniqueFd& fd, const fs::path& path, std::string& text) {
  std::array<char, 65536> piece;
  ssize_t n = -1;
  do {
    n = ::read(fd.get(), piece.data(), piece.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0) fail_errno(path, "cannot read");
  text.append(piece.data(), static_cast<std::size_t>(n));
  return n > 0;
}

// Returns the file that write_atomic replaces: a link's target, and never a device like /dev/null.
fs::path replaceable(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail("{}: cannot write: it is there already and is not a regular file", path.string());
  }
  if (!fs::is_symlink(fs::symlink_status(path, ignored))) return path;
  const fs::path target = fs::weakly_canonical(path, ignored);
  return target.empty() ? path : target;
}

/// Returns NAME of a temporary name, ".NAME.<process>-<count>.part", any other name as it is.
std::string_view final_name(std::string_view name) {
  if (!name.starts_with('.') || !name.ends_with(kStagingSuffix)) return name;
  const std::string_view inner =
      name.substr(1, std::max(name.size(), kStagingSuffix.size() + 1) - kStagingSuffix.size() - 1);
  const size_t dot = inner.rfind('.'), dash = inner.rfind('-');
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  };
  const bool staged = dot != inner.npos && dot > 0 && dash != inner.npos && dash > dot &&
                      is_number(inner.substr(dot + 1, dash - dot - 1)) &&
                      is_number(inner.substr(dash + 1));
  return staged ? inner.substr(0, dot) : name;
}

/// Returns the characters of a name that `max_bytes` have room for.
std::string beginning(const std::string& name, size_t max_bytes) {
  size_t cut = std::min(name.size(), max_bytes);
  while (cut > 0 && cut < name.size() && !starts_character(name[cut])) --cut;
  return name.substr(0, cut);
}

}  // namespace

MappedFile::MappedFile(const fs::path& path) {
  // O_NONBLOCK: opening a named pipe would otherwise wait for a writer.
  const UniqueFd fd = open_file(path, O_RDONLY | O_NONBLOCK);
  const struct stat status = status_of(fd, path);
  if (!S_ISREG(status.st_mode)) fail("{}: not a regular file", path.string());
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // mmap rejects an empty range.
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) fail_errno(path, "cannot map");
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

MappedFile::~MappedFile() {
  unmap();
}

void MappedFile::release(std::span<const std::byte> part) const noexcept {
  if (part.empty()) return;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto from = static_cast<std::size_t>(part.data() - bytes_.data());
  const std::size_t first = from / page * page;
  auto* address = const_cast<std::byte*>(bytes_.data() + first);
  ::madvise(address, from + part.size() - first, MADV_DONTNEED);  // A hint that may fail.
}

void MappedFile::unmap() noexcept {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  bytes_ = {};
}

std::string read_text(const fs::path& path) {
  const UniqueFd fd = open_file(path, O_RDONLY);
  std::string text;
  while (append_piece(fd, path, text)) {
  }
  return text;
}

std::string read_text(const fs::path& path, uint64_t max_bytes, std::string_view what) {
  // O_NONBLOCK: opening a named pipe would otherwise wait for a writer.
  const UniqueFd fd = open_file(path, O_RDONLY | O_NONBLOCK);
  const struct stat status = status_of(fd, path);
  if (!S_ISREG(status.st_mode)) fail("{}: not a regular file", path.string());
  const auto check = [&](uint64_t bytes) {
    if (bytes <= max_bytes) return;
    fail("{}: {} bytes are more than {} has (at most {})", path.string(), bytes, what, max_bytes);
  };
  check(static_cast<uint64_t>(status.st_size));
  std::string text;
  // The file may have grown meanwhile, and files of /proc report a size of 0.
  while (append_piece(fd, path, text)) check(text.size());
  return text;
}

fs::path unique_sibling(const fs::path& path) {
  static std::atomic<unsigned> counter{0};
  fs::path name = path.filename();
  fs::path folder = path.parent_path();
  if (name.empty()) {  // "runs/a/" names the directory a itself.
    name = folder.filename();
    folder = folder.parent_path();
  }
  for (;;) {
    const std::string end =
        fmt::format(".{}-{}{}", ::getpid(), counter.fetch_add(1), kStagingSuffix);
    const fs::path sibling =
        folder / ("." + beginning(name.string(), NAME_MAX - 1 - end.size()) + end);
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(sibling, ignored))) return sibling;
  }
}

fs::path without_staging(const fs::path& path) {
  fs::path result;
  for (const fs::path& part : path) {
    const std::string name = part.string();
    const std::string_view last = final_name(name);
    // A sibling of "FOLDER/." holds what goes into the folder itself.
    if (last != "." || last == name) result /= last;
  }
  return result;
}

AtomicFile::AtomicFile(const fs::path& final_place)
    : final_place_(replaceable(final_place)),
      staging_(unique_sibling(final_place_)),
      fd_(try_open(staging_, O_WRONLY | O_CREAT | O_EXCL)) {
  if (!fd_) fail_errno(final_place, "cannot create");
}

AtomicFile::~AtomicFile() {
  if (fd_) ::unlink(staging_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (!fd_) fail_usage("{}: written to after commit", final_place_.string());
  write_all(fd_.get(), bytes, final_place_);
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

void AtomicFile::sync() {
  if (!fd_) fail_usage("{}: committed twice", final_place_.string());
  sync_fd(fd_.get(), final_place_);
}

void AtomicFile::commit() {
  sync();
  if (::rename(staging_.c_str(), final_place_.c_str()) != 0) {
    fail_errno(final_place_, "cannot rename into place");
  }
  fd_.reset();
  const fs::path folder = final_place_.parent_path();
  sync_path(folder.empty() ? "." : folder);
}

void AtomicFile::withdraw() noexcept {
  if (!fd_) ::unlink(final_place_.c_str());
}

void write_atomic(const fs::path& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_atomic(const fs::path& path, std::string_view text) {
  write_atomic(path, std::as_bytes(std::span(text)));
}

}  // namespace moesaic
