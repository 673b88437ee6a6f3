// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/printable.h"

#include <fmt/format.h>

namespace moesaic {

std::string printable(std::string_view name) {
  constexpr std::size_t kLongest = 80;
  std::string text = "'";
  for (const char c : name.substr(0, kLongest)) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) {
      text += fmt::format("\\x{:02x}", code);
    } else {
      text += c;
    }
  }
  return text + (name.size() > kLongest ? "...'" : "'");
}

}  // namespace moesaic
