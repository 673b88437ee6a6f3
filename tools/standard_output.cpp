// SPDX-License-Identifier: Apache-2.0
#include "standard_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <system_error>

#include "moesaic/base/log.h"
#include "moesaic/base/terminal.h"

namespace moesaic::tools {
namespace {

FileBuffer* output = nullptr;  ///< Of std::cout, until the end of the program.

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
  std::cout.rdbuf(output = new FileBuffer(stdout, is_terminal(stdout)));
  if (is_terminal(stderr)) std::cerr.rdbuf(new FileBuffer(stderr, /*is_terminal=*/true));
}

int checked_output(int exit_code) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;  // This flushes std::cout too.
  int error = errno;
  if (output->error() != 0) error = output->error();  // It came first.
  if (flushed && std::ferror(stdout) == 0 && std::cout.good()) return exit_code;
  if (exit_code != 0) return exit_code;  // The error has been printed already.
  log_error("standard output: cannot write{}",
            error == 0 ? "" : ": " + std::generic_category().message(error));
  return 1;
}

}  // namespace moesaic::tools
