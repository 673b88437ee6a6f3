// SPDX-License-Identifier: Apache-2.0
// Checks of paths given by a user: inputs must exist, outputs must not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "moesaic/base/filesystem.h"

namespace moesaic {

/// Returns whether `path` exists. Throws Error (failure) if that cannot be determined, e.g. because
/// a parent directory is not accessible or a name is too long.
bool path_exists(const fs::path& path);

/// How a path is suggested: by its last name, or as it would be typed.
enum class PathForm { name, path };

/// Returns what is wrong with a path that does not exist: "; did you mean 'x'?" with the nearest
/// name in its directory of those that the caller `takes`, or which part of it is missing or is not
/// a directory; "" if nothing is known.
std::string nearest_sibling(const fs::path& path, PathForm as = PathForm::path,
                            bool (*takes)(const fs::path&) = nullptr);

/// Returns the path of what exists so that it is found from any working directory, without a '/' at
/// its end; other texts as they are.
std::string absolute_path(const std::string& path);

/// Throws Error (usage), with the nearest name, unless `path` is a regular file.
void check_input_file(const fs::path& path);

/// Throws Error (usage) that begins with `what`, e.g. "--out", if `path` is empty, its parent
/// directory is missing, or anything exists there, including a link: no file is ever overwritten.
void check_new_file(const fs::path& path, std::string_view what);

/// Checks an output directory, to be created with its parents, in the same way; an empty one may
/// exist. Both throw Error (failure) where this user may write nothing in the folder above it.
void check_new_folder(const fs::path& path, std::string_view what);

/// Throws Error (usage) that begins with `what` if a part of the path exists and is not a
/// directory, if the path is a dangling link, or if it begins with "~/" or as an address.
void check_folder_path(const fs::path& path, std::string_view what);

/// Returns whether text from a file can be the name of a file: at most 255 bytes, without '/' and
/// control characters, not beginning with '.'.
bool is_file_name(std::string_view name);
/// Returns the message that the value `name` of the setting `key` is not a file name.
std::string file_name_problem(std::string_view key, std::string_view name);

/// Returns whether a name is portable as that of a folder: is_file_name(), of letters, digits, '-',
/// '_' and '.' only.
bool is_portable_name(std::string_view name);
/// Returns `name` as a portable name: '-' replaces every other character.
std::string portable_name(std::string name);

/// Returns the directory that holds models/, datasets/ and checkpoints/: $MOESAIC_HOME if it is
/// set, else ../share/moesaic relative to the program's directory (any installation prefix), else
/// the source tree of this build. Throws Error (usage) if $MOESAIC_HOME does not exist, Error
/// (failure) if none is found.
fs::path resource_root();

/// Returns resource_root() / relative, which need not exist.
fs::path resource(std::string_view relative);

/// Returns the .json files of `folder` in models/ of all families, in order.
std::vector<fs::path> model_files(std::string_view folder);

/// Returns where downloads of a kind are kept: $MOESAIC_DATA/kind, or where that is not set
/// resource("datasets/cache")/kind.
fs::path download_folder(std::string_view kind);

}  // namespace moesaic
