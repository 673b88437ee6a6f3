// SPDX-License-Identifier: Apache-2.0
// Unpacks archives from the web, lists tar archives whose members are read where they lie, and
// writes such ones. What is read is untrusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/base/filesystem.h"
#include "moesaic/base/posix.h"

struct archive;  // Types of libarchive.
struct archive_entry;

namespace moesaic {

/// Limits on what an archive may hold.
struct UnpackLimits {
  int64_t max_bytes = int64_t{1} << 40;    ///< Max total size of the unpacked files, in bytes.
  int64_t max_entries = int64_t{1} << 24;  ///< Max number of entries.
};

/// Unpacks a tar archive (uncompressed, gzip, bzip2 or xz) into `folder`, which must exist. Only
/// directories and regular files are accepted. Throws Error (failure) with archive and entry for
/// links, devices, absolute paths, "..", duplicate names and whatever exceeds `limits`. Modes,
/// owners and times are dropped. After an Error some files may remain in `folder`: pass one that is
/// discarded, e.g. of a StagedDirectory.
void unpack_archive(const fs::path& archive, const fs::path& folder,
                    const UnpackLimits& limits = {});

/// A regular file in an archive: `size` bytes at `offset` of the archive's own bytes.
struct TarMember {
  std::string name;  ///< Relative, without "." and "..".
  int64_t offset = 0, size = 0;
};

/// An entry that is left out, or the place from which on an archive cannot be read.
struct TarProblem {
  std::string member;  ///< Empty where no name could be read.
  std::string text;    ///< One line, without the archive's name.
};

/// The files of a tar archive and what is wrong with it.
struct TarIndex {
  std::vector<TarMember> members;  ///< In the archive's order, each with all its bytes.
  std::vector<TarProblem> problems;
  /// Whether it could not be read to its end, as the last problem says.
  bool is_truncated = false;
};

/// Lists the files of a tar archive by reading the headers alone. Left out, with a problem each,
/// are links, devices and sparse files, absolute paths and those with "..", control characters in a
/// name, and a name that was there before; where the archive is damaged or ends too early, so is
/// all that follows. No size is trusted: members lie within the file. Throws, with the path,
/// IoError if the file cannot be read, Error (failure) if it is compressed.
TarIndex index_tar(const fs::path& path);

/// Returns whether a file begins as a zip archive does.
bool is_zip(std::span<const std::byte> file);

/// Returns whether a zip archive has a member FOLDER/`name`, packed or not; throws as
/// find_in_zip().
bool is_in_zip(const fs::path& archive, std::string_view name);

/// Checks the files of a zip archive, which must lie there uncompressed, by their checksums, and
/// returns their bytes in all. Throws Error (failure) in one line with the path.
uint64_t verify_zip(const fs::path& path);

/// Returns the bytes of the member FOLDER/`name`, whatever the folder, or nothing where there is
/// none. Throws Error (failure), with `where`, the file's path, for an archive that is corrupt and
/// for a member that is compressed or encrypted. Checksums are not verified.
std::optional<std::span<const std::byte>> find_in_zip(std::span<const std::byte> archive,
                                                      std::string_view name,
                                                      const std::string& where);

/// Writes a tar archive whose bytes depend on names and contents alone: no times, owners or modes.
class TarWriter {
 public:
  /// Creates the file. Throws Error (failure) if it exists or cannot be created.
  explicit TarWriter(const fs::path& path);

  /// Appends a file. Throws Error (failure), e.g. if the disk is full.
  void add(const std::string& name, std::span<const std::byte> bytes);
  /// Writes the end of the archive and syncs it; without it the file is incomplete.
  void close();

 private:
  void check(int64_t result) const;

  fs::path path_;
  UniqueFd fd_;
  std::unique_ptr<archive, int (*)(archive*)> open_;
  std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry_;
};

}  // namespace moesaic
