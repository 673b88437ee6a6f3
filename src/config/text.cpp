// SPDX-License-Identifier: Apache-2.0
#include "text.h"

#include <fmt/format.h>

#include <algorithm>

namespace moesaic::config_detail {

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
    // The second byte's range rules out overlong forms, surrogates and what is past U+10FFFF.
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
      if ((byte(i + k) & 0xC0u) != 0x80u) return i;
    }
    i += length;
  }
  return std::nullopt;
}

std::string one_line(std::string_view text) {
  constexpr size_t kLongest = 120;
  size_t cut = std::min(text.size(), kLongest);
  while (cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xC0u) == 0x80u) ++cut;
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

}  // namespace moesaic::config_detail
