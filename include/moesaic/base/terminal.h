// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <streambuf>

namespace moesaic {

/// Writes what a stream prints to a file, a terminal, with all control characters but line breaks
/// and tabs escaped(): names and texts out of files may hold commands for terminals.
class TerminalBuffer : public std::streambuf {
 public:
  /// Writes to `file`, which stays open.
  explicit TerminalBuffer(std::FILE* file) : file_(file) {}

 private:
  std::streamsize xsputn(const char* text, std::streamsize count) override;
  int_type overflow(int_type character) override;
  int sync() override;

  std::FILE* file_;
};

/// Returns whether `file` is a terminal.
bool is_terminal(std::FILE* file);

/// Returns whether `file` is a terminal with colour support and NO_COLOR is unset or empty.
bool wants_color(std::FILE* file);

/// Returns the number of columns of the terminal behind `file`; 80 if it is unknown.
int terminal_columns(std::FILE* file);

}  // namespace moesaic
