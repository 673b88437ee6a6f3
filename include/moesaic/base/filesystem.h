// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <system_error>

namespace moesaic {

namespace fs = std::filesystem;

/// Returns the status of what a path leads to; what cannot be looked up is neither there nor a file
/// nor a folder.
inline fs::file_status status_of(const fs::path& path) {
  std::error_code ignored;
  return fs::status(path, ignored);
}

}  // namespace moesaic
