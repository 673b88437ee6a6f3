// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "moesaic/config/value.h"

namespace moesaic::config_detail {

inline constexpr int64_t kMaxExtends = 64;  ///< Max extends in one document, nested ones included.

/// Reads a JSON file in which every object with {"extends": "other.json", ...} becomes the object
/// of that file with its own members merged over it (Value::merged). The path is relative to the
/// extending file, and the other file may extend further ones. Each part keeps its own origin.
/// Throws Error (usage), with the position of the path, for a file that is missing, holds no
/// object, or extends itself directly or indirectly, Error (failure) for one of more than
/// `max_bytes`.
Value read_extended(const std::filesystem::path& path, uint64_t max_bytes);

}  // namespace moesaic::config_detail
