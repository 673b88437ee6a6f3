// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <streambuf>

namespace moesaic {

/// Writes what a stream prints to a file and remembers why the first write failed, which stdio does
/// not. For a terminal all control characters but line breaks and tabs are escaped(): names and
/// texts out of files may hold commands for terminals.
class FileBuffer : public std::streambuf {
 public:
  /// Writes to `file`, which stays open.
  FileBuffer(std::FILE* file, bool is_terminal) : file_(file), is_terminal_(is_terminal) {}

  /// Returns the errno of the first write that failed, or 0.
  int error() const { return error_; }

 private:
  std::streamsize xsputn(const char* text, std::streamsize count) override;
  int_type overflow(int_type character) override;
  int sync() override;
  bool keep_errno(bool is_written);

  std::FILE* file_;
  bool is_terminal_;
  int error_ = 0;
};

/// Returns whether `file` is a terminal.
bool is_terminal(std::FILE* file);

/// Returns whether `file` is a terminal with colour support and NO_COLOR is unset or empty.
bool wants_color(std::FILE* file);

/// Returns the number of columns of the terminal behind `file`; 80 if it is unknown.
int terminal_columns(std::FILE* file);

}  // namespace moesaic
