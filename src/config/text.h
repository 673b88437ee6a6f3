// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace moesaic::config_detail {

/// The first byte that is not part of well-formed UTF-8 (no surrogates, no overlong forms).
std::optional<size_t> find_invalid_utf8(std::string_view text);

/// For messages: escapes control characters, and shortens what is long.
std::string one_line(std::string_view text);

}  // namespace moesaic::config_detail
