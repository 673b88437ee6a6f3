// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/lookalike.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "moesaic/base/text.h"

namespace moesaic {
namespace {

/// Returns the code points of valid UTF-8.
std::u32string code_points(std::string_view text) {
  std::u32string points;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (!starts_character(c)) {
      points.back() = points.back() << 6 | (byte & 0x3Fu);
    } else {
      points += byte < 0x80 ? byte : byte & (byte < 0xE0 ? 0x1Fu : byte < 0xF0 ? 0x0Fu : 0x07u);
    }
  }
  return points;
}

bool is_mark(char32_t c) {
  return c >= 0x300 && c <= 0x36F;
}

bool is_invisible(char32_t c) {
  return c == 0xAD || (c >= 0x200B && c <= 0x200F) || c == 0x2060 || c == 0xFEFF;
}

bool is_space(char32_t c) {
  return c == ' ' || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

/// Returns the visible characters, each with the marks that follow it.
std::vector<std::u32string> letters_of(std::string_view text) {
  std::vector<std::u32string> letters;
  for (const char32_t c : code_points(text)) {
    if (is_invisible(c)) continue;
    if (is_mark(c) && !letters.empty()) {
      letters.back() += c;
    } else {
      letters.emplace_back(1, c);
    }
  }
  return letters;
}

bool is_ascii(const std::u32string& letter) {
  return letter.size() == 1 && letter[0] < 0x80;
}

bool letters_look_alike(const std::u32string& a, const std::u32string& b) {
  if (a == b || (is_space(a[0]) && is_space(b[0]))) return true;
  if (is_ascii(a) || is_ascii(b)) return is_ascii(a) != is_ascii(b);
  return (a.size() == 1) != (b.size() == 1);
}

}  // namespace

bool looks_alike(std::string_view a, std::string_view b) {
  if (a == b || find_invalid_utf8(a) || find_invalid_utf8(b)) return false;
  const std::vector<std::u32string> first = letters_of(a), second = letters_of(b);
  if (first.size() != second.size()) return false;
  size_t equal = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    if (!letters_look_alike(first[i], second[i])) return false;
    equal += first[i] == second[i] ? 1 : 0;
  }
  return 2 * equal >= first.size();
}

std::string spelled_out(std::string_view text) {
  if (find_invalid_utf8(text)) return escaped(text);
  std::string line;
  for (const char32_t c : code_points(text)) {
    if (c < 0x80) {
      line += static_cast<char>(c);
    } else {
      line += fmt::format("\\u{{{:x}}}", static_cast<uint32_t>(c));
    }
  }
  return escaped(line);
}

}  // namespace moesaic
