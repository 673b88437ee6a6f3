// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace moesaic {

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto byte = [&](size_t at) {
      return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
    };
    const unsigned first = byte(i);
    if (first < 0x80u) {
      ++i;
      continue;
    }
    // The range of the second byte excludes overlong forms, surrogates and values above U+10FFFF.
    size_t length = 0;
    unsigned low = 0x80u, high = 0xBFu;
    if (first >= 0xC2u && first <= 0xDFu) length = 2;
    if (first >= 0xE0u && first <= 0xEFu) length = 3;
    if (first >= 0xF0u && first <= 0xF4u) length = 4;
    if (first == 0xE0u) low = 0xA0u;
    if (first == 0xEDu) high = 0x9Fu;
    if (first == 0xF0u) low = 0x90u;
    if (first == 0xF4u) high = 0x8Fu;
    if (length == 0 || byte(i + 1) < low || byte(i + 1) > high) return i;
    for (size_t k = 2; k < length; ++k) {
      if (i + k >= text.size() || starts_character(text[i + k])) return i;
    }
    i += length;
  }
  return std::nullopt;
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), starts_character));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string wrapped(const std::string& text, size_t columns, const std::string& indent) {
  std::string lines, line;
  for (const std::string& word : split(text, ' ')) {
    if (!line.empty() && count_characters(line) + 1 + count_characters(word) > columns) {
      lines += line + "\n" + indent;
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return lines + line;
}

std::string one_line(std::string_view text, size_t max_bytes) {
  size_t cut = std::min(text.size(), max_bytes);
  while (cut > 0 && cut < text.size() && !starts_character(text[cut])) --cut;
  std::string line;
  for (const char c : text.substr(0, cut)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += "\\n";
    } else if (byte < 0x20u || byte == 0x7Fu) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return cut < text.size() ? line + "..." : line;
}

std::string printable(std::string_view text) {
  constexpr size_t kMaxName = 80;
  return "'" + one_line(text, kMaxName) + "'";
}

std::string count_text(int64_t count, std::string_view noun) {
  const bool ies = noun.ends_with("s") && count != 1;  // a class
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : ies ? "es" : "s");
}

std::string bytes_text(double bytes) {
  if (bytes < 1000) return fmt::format("{:.0f} B", bytes);
  constexpr std::array kUnits = {"KB", "MB", "GB", "TB", "PB", "EB"};
  double value = bytes / 1000.0;
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000.0;
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, kUnits[unit]);
}

}  // namespace moesaic
