// SPDX-License-Identifier: Apache-2.0
// The files of a description: where they lie, how they are compared and downloaded, what is said of
// those that are missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "moesaic/base/filesystem.h"
#include "moesaic/data/format.h"
#include "moesaic/data/source.h"

namespace moesaic {

/// Returns what is wrong with a hash of so many digits in the setting `name`, "" if nothing is.
std::string hash_problem(const char* name, const std::string& hash, size_t digits);

/// Returns the path of `file` in `folder`, compressed (<name>.gz) or not; empty without either.
fs::path find_in(const fs::path& folder, const DatasetFile& file);

/// Name of the list that a fetch writes beside the files of a verified archive: their SHA-256, in
/// the format of sha256sum.
inline constexpr std::string_view kHashList = "SHA256SUMS";

/// Returns the description with the hashes of such a list in `folder` added to files without one.
/// Throws Error (failure) if the list is corrupt.
DatasetSpec with_recorded_hashes(DatasetSpec spec, const fs::path& folder);

/// Compares size and, where there is one, hash of the file's uncompressed bytes with the
/// description. Returns one line about what is wrong, or "".
std::string compare_file(const fs::path& path, const DatasetFile& file);

/// Returns the first part of a split that the folder lacks which has others, or else the first one;
/// nothing for files that are described otherwise.
std::optional<RequiredPath> first_missing(const DatasetSpec& spec, const std::string& split);

/// Returns "file 'x'" or "folder 'x'".
std::string text_of(const RequiredPath& part);

/// Returns how the files of a dataset are fetched; one of somebody's own description has no name
/// that the program knows.
std::string fetch_command(const std::string& name);

/// Throws Error that says how to get files that are in none of the searched folders.
[[noreturn]] void fail_missing(const DatasetSpec& spec, const std::string& split = {});

struct WantedFile {
  std::string name;        ///< Below the URLs of a description.
  fs::path place;          ///< Where it is to be.
  uint64_t max_bytes = 0;  ///< Max total size.
  std::string label;       ///< Label of the progress bar; empty means no bar.
  /// Returns what is wrong with the file at a path in one line, or "".
  std::function<std::string(const fs::path&)> problem_of;
};

/// Returns where what is to be a file arrives: a hidden name beside it that nobody else uses.
fs::path part_of(const fs::path& file);

/// Downloads a file, resuming what an earlier try left, compares it and puts it in its place.
/// Processes that want the same file wait for one of them. Throws Error (failure) with the URL and
/// the reason of every try.
void fetch_shared(const DatasetSpec& spec, const WantedFile& file);

}  // namespace moesaic
