// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <string_view>

#include "moesaic/base/text.h"

namespace moesaic {

/// Returns `is_written`, and keeps errno where it is false.
bool FileBuffer::keep_errno(bool is_written) {
  if (!is_written && error_ == 0) error_ = errno;
  return is_written;
}

std::streamsize FileBuffer::xsputn(const char* text, std::streamsize count) {
  std::string_view line(text, static_cast<std::size_t>(count));
  const std::string safe = is_terminal_ ? escaped(line, "\n\t") : "";
  if (is_terminal_) line = safe;
  return keep_errno(std::fwrite(line.data(), 1, line.size(), file_) == line.size()) ? count : 0;
}

FileBuffer::int_type FileBuffer::overflow(int_type character) {
  if (traits_type::eq_int_type(character, traits_type::eof())) return 0;
  const char c = traits_type::to_char_type(character);
  return xsputn(&c, 1) == 1 ? character : traits_type::eof();
}

int FileBuffer::sync() {
  return keep_errno(std::fflush(file_) == 0) ? 0 : -1;
}

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
