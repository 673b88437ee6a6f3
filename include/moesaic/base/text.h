// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace moesaic {

/// The first byte that is not part of well-formed UTF-8 (no surrogates, no overlong forms).
std::optional<size_t> find_invalid_utf8(std::string_view text);

/// Whether a byte of UTF-8 begins a character instead of continuing one.
inline bool starts_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u;
}

/// Characters, not bytes, of UTF-8.
size_t count_characters(std::string_view text);

/// A text out of a file or an argument, fit for a message: control characters are escaped, and what
/// is long is shortened.
std::string one_line(std::string_view text, size_t max_bytes = 120);

/// one_line() of at most 80 bytes, in quotes.
std::string printable(std::string_view text);

/// Bytes as "512 B", "4.10 KB", "3.26 MB": powers of 1000.
std::string bytes_text(double bytes);

}  // namespace moesaic
