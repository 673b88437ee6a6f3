// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/text.h"

namespace moesaic {

namespace {

/// Opens a regular file; returns it with its size in bytes.
std::pair<UniqueFd, uint64_t> open_regular(const fs::path& path) {
  // O_NONBLOCK: opening a named pipe would otherwise wait for a writer.
  UniqueFd fd = open_file(path, O_RDONLY | O_NONBLOCK);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_errno(path, "cannot examine");
  if (!S_ISREG(status.st_mode)) fail("{}: not a regular file", path.string());
  return {std::move(fd), static_cast<uint64_t>(status.st_size)};
}

// Appends the next piece of the file; returns false at its end.
bool append_piece(const UniqueFd& fd, const fs::path& path, std::string& text) {
  std::array<char, 65536> piece;
  const ssize_t n = TEMP_FAILURE_RETRY(::read(fd.get(), piece.data(), piece.size()));
  if (n < 0) fail_errno(path, "cannot read");
  text.append(piece.data(), static_cast<std::size_t>(n));
  return n > 0;
}

// Returns the file that write_atomic replaces: a link's target, and never a device like /dev/null.
fs::path replaceable(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail("{}: cannot write: it already exists and is not a regular file", path.string());
  }
  if (!fs::is_symlink(fs::symlink_status(path, ignored))) return path;
  const fs::path target = fs::weakly_canonical(path, ignored);
  return target.empty() ? path : target;
}

/// Returns NAME of a name ".NAME.<process>-<number><suffix>", which unique_sibling() makes; "" of
/// any other one.
std::string_view staged_name(std::string_view name, std::string_view suffix) {
  if (name.size() <= suffix.size() || name[0] != '.' || !name.ends_with(suffix)) return {};
  name.remove_prefix(1);
  name.remove_suffix(suffix.size());
  const size_t dot = std::min(name.rfind('.'), name.size());
  const size_t dash = std::min(name.find('-', dot), name.size());
  if (dash == name.size() || !is_digits(name.substr(dot + 1, dash - dot - 1))) return {};
  return is_digits(name.substr(dash + 1)) ? name.substr(0, dot) : std::string_view();
}

void check(const std::error_code& error, const fs::path& path, std::string_view what) {
  if (error) fail("{}: {}: {}", path.string(), what, error.message());
}

// Marks what is staged as in use by a living process. The process id in its name does not tell: on
// another machine or in another container it is another process's. The lock is exclusive because
// NFS grants no other on a file that is open for writing only, and waits, because is_held() may
// hold one for a moment. Where the file system has no locks, nothing is marked.
void hold(const UniqueFd& fd) {
  while (fd && ::flock(fd.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
}

bool is_held(const fs::path& staged) {
  const UniqueFd fd = try_open(staged, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd) return errno != ENOENT && errno != ELOOP;  // What cannot be examined may be in use.
  return ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
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
  const fs::path aside = unique_sibling(old, kReplacedSuffix);
  const std::string name = old.filename().string();
  // After a crash its name is all that tells where the old directory belongs.
  if (!aside.filename().string().starts_with("." + name + ".")) {
    fail(
        "{}: cannot replace: the name has {} bytes, too many on a file system without "
        "RENAME_EXCHANGE; choose a name of at most 200 bytes",
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

constexpr std::size_t kAlignmentOfMemory = 4096;            // Enough for O_DIRECT on any disk.
constexpr std::size_t kBufferBytes = std::size_t{1} << 20;  // Stays in the cache.

bool set_direct(int fd, bool direct) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

std::byte* aligned_memory() {
  void* const memory = std::aligned_alloc(kAlignmentOfMemory, kBufferBytes);
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

}  // namespace

MappedFile::MappedFile(const fs::path& path) {
  const auto [fd, size] = open_regular(path);
  if (size == 0) return;  // mmap rejects an empty range.
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) fail_errno(path, "cannot map");
  memory_ = {static_cast<std::byte*>(address), Unmap{size}};
}

void MappedFile::release(std::span<const std::byte> part) const noexcept {
  if (part.empty()) return;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto from = static_cast<std::size_t>(part.data() - memory_.get());
  const std::size_t first = from / page * page;
  // A hint that may fail.
  ::madvise(memory_.get() + first, from + part.size() - first, MADV_DONTNEED);
}

void MappedFile::Unmap::operator()(std::byte* memory) const {
  ::munmap(memory, size);
}

std::string read_text(const fs::path& path) {
  const UniqueFd fd = open_file(path, O_RDONLY);
  std::string text;
  while (append_piece(fd, path, text)) {
  }
  return text;
}

std::string read_text(const fs::path& path, uint64_t max_bytes, std::string_view what) {
  const auto [fd, size] = open_regular(path);
  const auto check = [&](uint64_t bytes) {
    if (bytes <= max_bytes) return;
    fail("{}: {} bytes are more than {} has (at most {})", path.string(), bytes, what, max_bytes);
  };
  check(size);
  std::string text;
  // The file may have grown meanwhile, and files of /proc report a size of 0.
  while (append_piece(fd, path, text)) check(text.size());
  return text;
}

fs::path unique_sibling(const fs::path& path, std::string_view suffix) {
  static std::atomic<unsigned> counter{0};
  fs::path name = path.filename(), folder = path.parent_path();
  if (name.empty()) {  // "runs/a/" names the directory a itself.
    name = folder.filename();
    folder = folder.parent_path();
  }
  for (;;) {
    const std::string end = fmt::format(".{}-{}{}", ::getpid(), counter.fetch_add(1), suffix);
    const fs::path sibling =
        folder / fmt::format(".{}{}", first_bytes(name.string(), NAME_MAX - 1 - end.size()), end);
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(sibling, ignored))) return sibling;
  }
}

fs::path without_staging(const fs::path& path) {
  fs::path result;
  for (const fs::path& part : path) {
    const std::string name = part.string();
    const std::string_view last = staged_name(name, kStagingSuffix);
    // A sibling of "FOLDER/." holds what goes into the folder itself.
    if (last != ".") result /= last.empty() ? name : last;
  }
  return result;
}

AtomicFile::AtomicFile(const fs::path& final_path)
    : final_path_(replaceable(final_path)),
      staging_(unique_sibling(final_path_)),
      fd_(try_open(staging_, O_WRONLY | O_CREAT | O_EXCL)) {
  if (!fd_) fail_errno(final_path, "cannot create");
  hold(fd_);
}

AtomicFile::~AtomicFile() {
  if (fd_) ::unlink(staging_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (!fd_) fail_usage("{}: written to after commit", final_path_.string());
  write_all(fd_.get(), bytes, final_path_);
}

void AtomicFile::sync() {
  if (!fd_) fail_usage("{}: committed twice", final_path_.string());
  sync_fd(fd_.get(), final_path_);
}

void AtomicFile::commit() {
  sync();
  rename_or_fail(staging_, final_path_);
  fd_.reset();
  const fs::path folder = final_path_.parent_path();
  sync_path(folder.empty() ? "." : folder);
}

void AtomicFile::rollback() noexcept {
  if (!fd_) ::unlink(final_path_.c_str());
}

void write_atomic(const fs::path& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_atomic(const fs::path& path, std::string_view text) {
  write_atomic(path, std::as_bytes(std::span(text)));
}

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
    if (is_held(entry)) continue;
    if (!replaced.empty() && put_back(entry, folder / replaced)) continue;
    fs::remove_all(entry, error);
    check(error, entry, "cannot remove");
  }
}

UniqueFd lock_folder(const fs::path& folder) {
  UniqueFd fd = try_open(folder, O_RDONLY | O_DIRECTORY);
  hold(fd);
  return fd;
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
  if (const size_t dash = end.rfind('-'); dash != end.npos && is_digits(&end[dash + 1])) {
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

StagedDirectory::StagedDirectory(fs::path final_path)
    : final_path_(without_trailing_slash(std::move(final_path))) {
  std::error_code error;
  create_folders(final_path_.parent_path(), error);
  check(error, final_path_, "cannot create its folder");
  staging_ = unique_sibling(final_path_);
  fs::create_directory(staging_, error);
  check(error, final_path_, "cannot create");
  lock_ = lock_folder(staging_);
}

StagedDirectory::~StagedDirectory() {
  std::error_code ignored;
  if (!is_committed_) fs::remove_all(staging_, ignored);
}

void StagedDirectory::commit() {
  if (is_committed_) fail_usage("{}: committed twice", final_path_.string());
  sync_path(staging_);
  const fs::path parent = final_path_.has_parent_path() ? final_path_.parent_path() : ".";
  std::error_code error;
  if (!fs::exists(fs::symlink_status(final_path_, error))) {
    rename_or_fail(staging_, final_path_);
    is_committed_ = true;
    sync_path(parent);
    return;
  }
  if (!fs::is_directory(final_path_, error)) {
    fail("{}: cannot replace: it already exists and is not a folder", final_path_.string());
  }
  const UniqueFd held = lock_folder(final_path_);  // It gets the name of a leftover.
  const fs::path old = replace_folder(staging_, final_path_);
  is_committed_ = true;
  sync_path(parent);
  // The new directory is in place; a remainder of the old one is not worth failing for.
  fs::remove_all(old, error);
  if (error) log_warning("{}: cannot remove: {}", old.string(), error.message());
}

HashedFile::HashedFile(const fs::path& final_path, std::function<void()> progress)
    : file_(final_path),
      buffer_(aligned_memory(), &std::free),
      uses_direct_io_(set_direct(file_.fd(), true)),
      progress_(std::move(progress)) {}

void HashedFile::write(std::span<const std::byte> bytes) {
  size_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), kBufferBytes - used_);
    std::memcpy(buffer_.get() + used_, bytes.data(), n);
    used_ += n;
    bytes = bytes.subspan(n);
    if (used_ == kBufferBytes) flush();
  }
}

void HashedFile::flush() {
  std::span<const std::byte> bytes(buffer_.get(), used_);
  hash_.update(bytes);
  if (uses_direct_io_ && used_ == kBufferBytes) {
    const ssize_t n = ::write(file_.fd(), bytes.data(), bytes.size());
    bytes = bytes.subspan(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  }
  // The end of a file is no whole block, and what the disk refuses is said by a usual write.
  if (uses_direct_io_ && !bytes.empty()) uses_direct_io_ = !set_direct(file_.fd(), false);
  file_.write(bytes);
  waiting_ += uses_direct_io_ ? 0 : static_cast<int64_t>(used_);
  used_ = 0;
  // Where all pages wait for the end of the file, one sync takes long and shows no progress.
  constexpr int64_t kMaxWaiting = int64_t{64} << 20;
  if (waiting_ >= kMaxWaiting) {
    file_.sync();
    waiting_ = 0;
  }
  if (progress_) progress_();
}

FileContent HashedFile::commit() {
  flush();
  file_.commit();
  return {size_, hash_.hex()};
}

}  // namespace moesaic
