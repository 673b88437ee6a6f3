// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace moesaic {

bool is_terminal(std::FILE* file) {
  return ::isatty(::fileno(file)) == 1;
}

bool wants_color(std::FILE* file) {
  const char* refused = std::getenv("NO_COLOR");
  if (refused != nullptr && *refused != '\0') return false;
  const char* kind = std::getenv("TERM");
  if (kind == nullptr || std::string_view(kind) == "dumb") return false;
  return is_terminal(file);
}

int terminal_columns(std::FILE* file) {
  constexpr int kUsual = 80;
  struct winsize size {};
  if (::ioctl(::fileno(file), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsual;
  return size.ws_col;
}

}  // namespace moesaic
