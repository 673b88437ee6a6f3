// SPDX-License-Identifier: Apache-2.0
// Downloads that are resumed, compared and put in place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "moesaic/data/source.h"

namespace moesaic {

struct WantedFile {
  std::string name;             ///< Below the URLs of a description.
  std::filesystem::path place;  ///< Where it is to be.
  uint64_t max_bytes = 0;       ///< Max total size.
  std::string label;            ///< Label of the progress bar; empty means no bar.
  /// Returns what is wrong with the file at a path in one line, or "".
  std::function<std::string(const std::filesystem::path&)> problem_of;
};

/// Returns where what is to be a file arrives: a hidden name beside it that nobody else uses.
std::filesystem::path part_of(const std::filesystem::path& file);

/// Makes a folder for fetched files.
void make_data_folder(const std::filesystem::path& folder);

/// Downloads a file to part_of(file.place) from the first of spec.urls that has it. What an earlier
/// try left is resumed, and thrown away where the whole then is wrong. Returns the URL and the
/// problem of every try, or "" on success; then what arrived stays for the next try where it may be
/// right. Throws Error (failure) where the part is a link, or another name of a file: whoever made
/// the folder may have put it there to reach files elsewhere.
std::string download(const DatasetSpec& spec, const WantedFile& file);

/// Renames a downloaded file to its place and syncs that. What is there already and is not what was
/// wanted, is set aside under a name that is printed: someone may have put it there.
void install(const std::filesystem::path& place);

/// Sets aside what is at `place`, if anything, and prints its new name.
void make_room(const std::filesystem::path& place);

/// Downloads and installs a file that other processes may want too: they wait for one of them.
/// Throws Error (failure) with the URL and the reason of every try.
void fetch_shared(const DatasetSpec& spec, const WantedFile& file);

}  // namespace moesaic
