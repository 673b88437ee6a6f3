// SPDX-License-Identifier: Apache-2.0
// The files of a description: where they lie, how they are compared and downloaded, what is said of
// those that are missing.
#pragma once

#include <cstddef>

#include "moesaic/data/fetch_file.h"
#include "moesaic/data/format.h"

namespace moesaic {

/// Returns what is wrong with a hash of so many digits in the setting `name`, "" if nothing is.
std::string hash_problem(const char* name, const std::string& hash, size_t digits);

/// Returns the path of `file` in `folder`, compressed (<name>.gz) or not; empty without either.
fs::path find_in(const fs::path& folder, const DatasetFile& file);

/// Returns the description with the hashes of the list in `folder`, which a fetch writes beside the
/// files of a verified archive, added to files without one. Throws Error (failure) if the list is
/// corrupt.
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

/// Returns where what is to be a file arrives: a hidden name beside it that nobody else uses.
fs::path partial_path(const fs::path& file);

/// Sets aside what is at `place`, if anything, and prints its new name: someone may have put it
/// there.
void make_room(const fs::path& place);

/// Renames a downloaded file to its place and syncs that; what is there already is set aside.
void install(const fs::path& place);

/// Downloads a file to partial_path(request.path) from the first of some addresses that has it, in
/// place of request.url; tries again at the last one only. What an earlier try left is resumed, and
/// thrown away where the whole then is wrong. Returns the address and the problem of every try, or
/// "" on success; then what arrived stays for the next try where it may be right.
std::string download(FetchRequest request, const std::vector<std::string>& urls);

/// Puts a file in its place by download(), unless it is there. Processes that want the same file
/// wait for one of them. Returns the problems of download().
std::string fetch_first(const FetchRequest& request, const std::vector<std::string>& urls);

/// Calls fetch_first() with the addresses and the token of a description, below which the file has
/// the name that its place has. Throws Error (failure) with the URL and the reason of every try.
void fetch_shared(const DatasetSpec& spec, FetchRequest request);

}  // namespace moesaic
