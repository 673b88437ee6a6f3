// SPDX-License-Identifier: Apache-2.0
#include "standard_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <streambuf>
#include <system_error>

#include "moesaic/base/log.h"
#include "moesaic/base/terminal.h"

namespace moesaic::tools {
namespace {

/// Writes what std::cout prints to stdout, as its own buffer does, and remembers why the first
/// write failed, which stdio does not.
class OutputBuffer : public std::streambuf {
 public:
  int error() const { return error_; }

 private:
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    const size_t written = std::fwrite(text, 1, static_cast<size_t>(count), stdout);
    if (written != static_cast<size_t>(count)) note();
    return static_cast<std::streamsize>(written);
  }
  int_type overflow(int_type character) override {
    if (traits_type::eq_int_type(character, traits_type::eof())) return 0;
    const char c = traits_type::to_char_type(character);
    return xsputn(&c, 1) == 1 ? character : traits_type::eof();
  }
  int sync() override {
    const bool flushed = std::fflush(stdout) == 0;
    if (!flushed) note();
    return flushed ? 0 : -1;
  }
  void note() {
    if (error_ == 0) error_ = errno;
  }

  int error_ = 0;
};

OutputBuffer* output = nullptr;  ///< Of a program's end; nullptr for a terminal.

}  // namespace

void hold_standard_streams() {
  // open() returns the lowest free number, so that those below are taken. What is printed to a
  // closed stdout is to fail; what is printed to a closed stderr goes nowhere.
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    const int held = ::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
    if (held >= 0 && held != fd) ::close(held);
  }
}

void protect_terminals() {
  // The buffers stay until the end, when the streams are flushed.
  if (is_terminal(stdout)) {
    std::cout.rdbuf(new TerminalBuffer(stdout));
  } else {
    std::cout.rdbuf(output = new OutputBuffer());
  }
  if (is_terminal(stderr)) std::cerr.rdbuf(new TerminalBuffer(stderr));
}

int checked_output(int exit_code) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;  // This flushes std::cout too.
  int error = errno;
  if (output != nullptr && output->error() != 0) error = output->error();  // It came first.
  if (flushed && std::ferror(stdout) == 0 && std::cout.good()) return exit_code;
  if (exit_code != 0) return exit_code;  // The error has been printed already.
  log_error("standard output: cannot write{}",
            error == 0 ? "" : ": " + std::generic_category().message(error));
  return 1;
}

}  // namespace moesaic::tools
