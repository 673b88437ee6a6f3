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

void hold_standard_output() {
  if (::fcntl(STDOUT_FILENO, F_GETFD) >= 0 || errno != EBADF) return;
  const int fd = ::open("/dev/null", O_RDONLY);
  if (fd < 0 || fd == STDOUT_FILENO) return;
  ::dup2(fd, STDOUT_FILENO);
  ::close(fd);
}

void protect_terminals() {
  // The buffers stay until the end, when the streams are flushed.
  if (is_terminal(stdout)) std::cout.rdbuf(new TerminalBuffer(stdout));
  if (is_terminal(stderr)) std::cerr.rdbuf(new TerminalBuffer(stderr));
}

int checked_output(int exit_code) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;  // This flushes std::cout too.
  const int error = errno;
  if (flushed && std::ferror(stdout) == 0 && std::cout.good()) return exit_code;
  if (exit_code != 0) return exit_code;  // The error has been printed already.
  log_error("standard output: cannot write{}",
            flushed ? "" : ": " + std::generic_category().message(error));
  return 1;
}

}  // namespace moesaic::tools
