// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "moesaic/base/filesystem.h"

namespace moesaic::tools {

/// Returns models/<family>/recipes/*.json of the program's own files, sorted.
std::vector<std::string> recipe_paths();

/// Throws Error (usage) unless `path` is a file: it says what a folder is good for, and which
/// recipe a name like "smoke" may mean.
void check_recipe(const fs::path& path);

}  // namespace moesaic::tools
