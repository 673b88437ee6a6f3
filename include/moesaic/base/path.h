// SPDX-License-Identifier: Apache-2.0
// Paths that a user gave: is there what is to be read, and is there nothing where something is to
// be written?
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace moesaic {

/// Does `path` lead to anything? Where that cannot be known, since a folder on the way is closed or
/// a name is too long, it is an Error(failure) that says so, rather than "no".
bool path_exists(const std::filesystem::path& path);

/// "; did you mean 'x'?" with the nearest name beside `path`, "" where none is near.
std::string nearest_sibling(const std::filesystem::path& path);

/// Throws Error(usage), with the nearest name, unless `path` is something that can be read from its
/// beginning to its end: a file, or a pipe.
void check_input_file(const std::filesystem::path& path);

/// Throws Error(usage) that begins with `what`, e.g. "--out", where `path` is empty, its folder is
/// missing, or anything has that name, a link included: what is there is never written over.
void check_new_file(const std::filesystem::path& path, std::string_view what);

/// The same for a folder, which is made with its parents and may also be there and be empty.
void check_new_folder(const std::filesystem::path& path, std::string_view what);

}  // namespace moesaic
