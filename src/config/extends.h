// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "moesaic/config/value.h"

namespace moesaic::config_detail {

inline constexpr int64_t kMaxExtends = 64;  ///< that one document may resolve, inner ones included

/// Reads a JSON file in which every object that says {"extends": "other.json", ...} becomes the
/// object of that file with its own members merged over it (Value::merged). The name is relative to
/// the file that says it, and the other file may extend further ones. Each part keeps the place
/// where it was written. Throws Error (usage), with the place of the name, for a file that is
/// missing, that holds no object, or that extends itself by way of others.
Value read_extended(const std::filesystem::path& path);

}  // namespace moesaic::config_detail
