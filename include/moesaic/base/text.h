// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace moesaic {

/// Returns the index of the first byte that is not valid UTF-8 (no surrogates, no overlong forms).
std::optional<size_t> find_invalid_utf8(std::string_view text);

/// Returns whether a byte of UTF-8 begins a character rather than continues one.
inline bool starts_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u;
}

/// UTF-8's byte order mark, with which some editors begin a text.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
/// Returns the text without a byte order mark at its beginning. Whoever reads a text calls this.
std::string_view without_byte_order_mark(std::string_view text);

/// Returns the number that is the whole of a text in decimal notation, nothing for any other text
/// and for one that the type cannot hold.
template <class Number>
std::optional<Number> parsed_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Returns the number of characters (code points) of UTF-8 text.
size_t count_characters(std::string_view text);

/// Returns whether the text is a number of decimal digits, without a sign.
bool is_digits(std::string_view text);

/// Returns the characters of the text that `max_bytes` have room for.
std::string_view first_bytes(std::string_view text, size_t max_bytes);

/// Returns the parts between separators; "" has one empty part.
std::vector<std::string> split(std::string_view text, char separator);

/// Returns the text with line breaks between words, so that lines have at most `columns`
/// characters; all but the first begin with `indent`, which does not count.
std::string wrapped(const std::string& text, size_t columns, const std::string& indent);

/// Returns text in which control characters, which a terminal interprets, and bytes that are not
/// UTF-8 are written as `\n` and `\x1b`; those in `kept` stay.
std::string escaped(std::string_view text, std::string_view kept = {});

/// Returns untrusted text in a form fit for a message: escaped(), and shortened where it is long.
std::string one_line(std::string_view text, size_t max_bytes = 120);

/// Returns one_line() of at most 80 bytes, in quotes.
std::string printable(std::string_view text);

/// Returns a message in which "..." stands for the middle of each word of more than 200 bytes, and
/// of the whole beyond 4000: a path from a user may have any length.
std::string abridged(std::string_view message);

/// Returns names in quotes, sorted, the first five of more: "'a', 'b', ...".
std::string quoted_names(std::vector<std::string> names);

/// Returns the first name that is in the list twice, or nullptr.
const std::string* repeated_name(const std::vector<std::string>& names);

/// Returns the prefix with each of the numbers 1 to `count`: "expert 1", "expert 2", ...
std::vector<std::string> numbered(const std::string& prefix, int64_t count);

/// Returns a line of comma-separated values (RFC 4180, with a bare line feed).
std::string csv_line(const std::vector<std::string>& fields);

/// Returns a number with what it counts, "1 file" or "2 files".
std::string count_text(int64_t count, std::string_view noun);

/// Returns a shape as "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape);

/// Returns whether a web address holds a user's name or password, or a query with a token.
bool has_secret(std::string_view url);

/// Formats a size in bytes as "512 B", "4.10 KB", "3.26 MB": powers of 1000.
std::string bytes_text(double bytes);

}  // namespace moesaic
