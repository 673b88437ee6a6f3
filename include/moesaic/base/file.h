// SPDX-License-Identifier: Apache-2.0
// File access: memory-mapped reading, atomic writing, staged directories. Everything here throws
// Error (failure) with the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "moesaic/base/filesystem.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/posix.h"

namespace moesaic {

/// A read-only memory-mapped file. An empty file has an empty span.
class MappedFile {
 public:
  /// Maps a regular file. Throws Error (failure) with the path.
  explicit MappedFile(const fs::path& path);

  /// Returns the content, valid while this object lives.
  std::span<const std::byte> bytes() const noexcept {
    return {memory_.get(), memory_ ? memory_.get_deleter().size : 0};
  }

  /// Releases the resident pages of `part` of bytes(); they are read again on the next access.
  /// Meant for a single pass over a file larger than the memory budget.
  void release(std::span<const std::byte> part) const noexcept;

 private:
  struct Unmap {
    std::size_t size;
    void operator()(std::byte* memory) const;
  };

  std::unique_ptr<std::byte[], Unmap> memory_;  ///< Null of an empty file.
};

/// Returns the whole file as text; works for pipes too.
std::string read_text(const fs::path& path);
/// Returns a regular file of at most `max_bytes` as text. Pipes and devices are rejected because
/// they may block or never end. `what` names the content in the error, e.g. "a configuration".
std::string read_text(const fs::path& path, uint64_t max_bytes, std::string_view what);

/// Suffixes of hidden names: of incomplete files and directories, and of a directory that
/// StagedDirectory::commit() has renamed. The suffixes contain the project's name, since what has
/// such a name is removed.
inline constexpr std::string_view kStagingSuffix = ".moesaic.part",
                                  kReplacedSuffix = ".moesaic.old";

/// Returns an unused path beside `path`: hidden, with the process id in it, ending in `suffix`.
fs::path unique_sibling(const fs::path& path, std::string_view suffix = kStagingSuffix);

/// Returns the path that such a path stands for, in any of its parts, for messages.
fs::path without_staging(const fs::path& path);

/// Cleans up after interrupted processes in `folder`: a directory that a commit() took out of its
/// place and did not replace is put back; temporary files (see unique_sibling) are removed. What
/// another process is writing, e.g. an export into the folder of a run, stays: AtomicFile,
/// StagedDirectory and lock_folder() lock it, which the kernel undoes when their process ends.
/// Where a file system has no locks, or not those of another machine (NFS, for directories), the
/// caller must know that no other process writes there, e.g. by the LockFile of the folder of a
/// run.
void remove_leftovers(const fs::path& folder);

/// Opens a temporary directory. While it is open, remove_leftovers() leaves it.
UniqueFd lock_folder(const fs::path& folder);

/// Renames a file or a directory to an unused name beside it, `NAME.WHAT`, `NAME.WHAT-2` or so on,
/// and returns its new path: what someone else made is never removed.
fs::path set_aside(const fs::path& path, std::string_view what);
/// Returns whether a name is one that set_aside() gives.
bool is_set_aside(const fs::path& path, std::string_view what);

/// Creates missing directories as fs::create_directories() does, and syncs those that
/// name them. Throws Error (failure) where one cannot be synced.
void create_folders(const fs::path& folder, std::error_code& error);

/// A file written under a temporary name; commit() syncs it and renames it to its final path.
/// Without commit() the temporary file is deleted and an existing file stays unchanged.
class AtomicFile {
 public:
  /// Creates the temporary file beside `final_path`, whose folder must exist.
  explicit AtomicFile(const fs::path& final_path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends bytes.
  void write(std::span<const std::byte> bytes);
  /// Appends text.
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Flushes all written bytes to disk; a full disk is reported here. commit() calls it first.
  void sync();
  /// Syncs the file and its folder and renames it to its final path.
  void commit();
  /// Removes the file that commit() put in place; does nothing before a commit().
  void rollback() noexcept;

  /// Returns its descriptor, -1 after commit().
  int fd() const noexcept { return fd_.get(); }

 private:
  fs::path final_path_;
  fs::path staging_;
  UniqueFd fd_;
};

/// Writes a whole file through AtomicFile.
void write_atomic(const fs::path& path, std::span<const std::byte> bytes);
/// Writes a whole text file through AtomicFile.
void write_atomic(const fs::path& path, std::string_view text);

/// What a file holds.
struct FileContent {
  int64_t size = 0;    ///< Size in bytes.
  std::string sha256;  ///< SHA-256 in 64 lower-case hex digits.
};

/// An AtomicFile for much data, hashed while it is written. Where the file system allows it, writes
/// bypass the page cache (O_DIRECT): a checkpoint does not evict the training data, and no second
/// copy takes memory bandwidth.
class HashedFile {
 public:
  /// `progress` is called as often as a piece of a few MiB at most is on its way to the disk.
  explicit HashedFile(const fs::path& final_path, std::function<void()> progress = {});

  /// Appends bytes.
  void write(std::span<const std::byte> bytes);
  /// Puts the file in place, as AtomicFile::commit() does, and returns what it holds.
  FileContent commit();

 private:
  void flush();

  AtomicFile file_;
  std::unique_ptr<std::byte[], void (*)(void*)> buffer_;
  std::size_t used_ = 0;
  bool uses_direct_io_ = false;
  Sha256 hash_;
  int64_t size_ = 0, waiting_ = 0;  ///< Bytes in all, and in the page cache.
  std::function<void()> progress_;
};

/// A directory filled under a temporary name and renamed as a whole. Missing parents are created.
class StagedDirectory {
 public:
  /// Creates the staging directory, and missing parents of `final_path`.
  explicit StagedDirectory(fs::path final_path);
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;
  /// Removes the staging directory unless it was committed.
  ~StagedDirectory();

  /// Returns the staging directory, where files are written until commit().
  const fs::path& path() const noexcept { return staging_; }

  /// Syncs and renames the staging directory, whose files must be synced already, as those of
  /// AtomicFile are. An existing directory is exchanged atomically and deleted afterwards, so one
  /// of the two is in place at any time. Where the file system cannot exchange names (NFS, Lustre),
  /// the old one is renamed first; remove_leftovers() puts it back if the process ends before the
  /// new one is in place.
  void commit();

 private:
  fs::path final_path_;
  fs::path staging_;
  UniqueFd lock_;
  bool is_committed_ = false;
};

}  // namespace moesaic
