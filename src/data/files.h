// SPDX-License-Identifier: Apache-2.0
// The files of a description in its folder, and what is said of those that are missing.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "moesaic/data/format.h"

namespace moesaic {

/// Returns what is wrong with a hash of so many digits in the setting `name`, "" if nothing is.
std::string hash_problem(const char* name, const std::string& hash, size_t digits);

/// Returns the path of `file` in `folder`, compressed (<name>.gz) or not; empty without either.
std::filesystem::path find_in(const std::filesystem::path& folder, const DatasetFile& file);

/// Name of the list that a fetch writes beside the files of a verified archive: their SHA-256, in
/// the format of sha256sum.
inline constexpr std::string_view kHashList = "SHA256SUMS";

/// Returns the description with the hashes of such a list in `folder` added to files without one.
/// Throws Error (failure) if the list is damaged.
DatasetSpec with_recorded_hashes(DatasetSpec spec, const std::filesystem::path& folder);

/// Compares size and, where there is one, hash of the file's uncompressed bytes with the
/// description. Returns one line about what is wrong, or "".
std::string compare_file(const std::filesystem::path& path, const DatasetFile& file);

/// Returns the first part of a split that the folder lacks which has others, or else the first one;
/// nothing for files that are described otherwise.
std::optional<DatasetPart> first_missing(const DatasetSpec& spec, const std::string& split);

/// Returns "file 'x'" or "folder 'x'".
std::string text_of(const DatasetPart& part);

/// Returns how the files of a data set are fetched; one of somebody's own description has no name
/// that the program knows.
std::string fetch_command(const std::string& name);

/// Throws Error that says how to get files that are in none of the searched folders.
[[noreturn]] void fail_missing(const DatasetSpec& spec, const std::string& split = {});

}  // namespace moesaic
