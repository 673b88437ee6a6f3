// SPDX-License-Identifier: Apache-2.0
// Files that are either wholly there or not there: mapped reading, atomic writing, staged folders,
// locks. Everything here throws Error(failure) that names the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "moesaic/base/posix.h"

namespace moesaic {

/// A file mapped read-only for as long as the object lives. An empty file gives an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

  /// `part` of bytes() takes no memory of this process until it is looked at again: for someone who
  /// goes once through a file larger than what else they hold.
  void release(std::span<const std::byte> part) const noexcept;

 private:
  void unmap() noexcept;

  std::span<const std::byte> bytes_;
};

/// The whole file as text; works for pipes too.
std::string read_text(const std::filesystem::path& path);
/// The same of a regular file of at most `max_bytes`, so that nobody waits for a pipe or reads a
/// device without end. `what` says in the error what has no more, e.g. "a configuration".
std::string read_text(const std::filesystem::path& path, uint64_t max_bytes, std::string_view what);

/// A name beside `path` that nothing has yet: hidden, with the process in it, ending in ".part".
std::filesystem::path unique_sibling(const std::filesystem::path& path);

/// Removes what interrupted processes left in `folder` (see unique_sibling). Only for someone who
/// knows that nobody else is writing there, such as the holder of its LockFile.
void remove_leftovers(const std::filesystem::path& folder);

/// A file written beside its place; commit() syncs it and renames it there. Without commit()
/// nothing of it remains, and an existing file stays as it was.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& final_place);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// What is written is on the disk afterwards: a full one fails here. commit() begins with it.
  void sync();
  void commit();
  /// Removes the file again that commit() put into place; without one it does nothing.
  void withdraw() noexcept;

 private:
  std::filesystem::path final_place_;
  std::filesystem::path staging_;
  UniqueFd fd_;
};

/// AtomicFile in one call.
void write_atomic(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_atomic(const std::filesystem::path& path, std::string_view text);

/// A folder filled beside its place and moved there whole. Missing parents are made.
class StagedDirectory {
 public:
  explicit StagedDirectory(std::filesystem::path final_place);
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;
  /// Removes the staging folder unless it was committed.
  ~StagedDirectory();

  /// Where to write until commit().
  const std::filesystem::path& path() const noexcept { return staging_; }

  /// Syncs every file and folder, then moves the whole into place. A folder that is already there
  /// is exchanged in one step and only then deleted, so at every moment one of the two is in place.
  void commit();

 private:
  std::filesystem::path final_place_;
  std::filesystem::path staging_;
  bool committed_ = false;
};

/// Holds `folder`/.lock while it lives; a second holder gets an Error that names the first one's
/// process. The system drops the lock when a process dies, however it dies.
class LockFile {
 public:
  explicit LockFile(const std::filesystem::path& folder);

 private:
  UniqueFd fd_;
};

}  // namespace moesaic
