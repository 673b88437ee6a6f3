// SPDX-License-Identifier: Apache-2.0
#include "runtime.h"

#include <c10/util/Logging.h>
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <system_error>
#include <thread>

#include "moesaic/base/error.h"
#include "moesaic/base/filesystem.h"
#include "moesaic/base/log.h"
#include "moesaic/base/terminal.h"
#include "moesaic/parallel/launch.h"

namespace moesaic::tools {
namespace {

FileBuffer* output = nullptr;  ///< Of std::cout, until the end of the program.

/// Returns whether others keep all processors busy, by the load of the last minute.
bool is_busy() {
  double load = 0.0;
  return getloadavg(&load, 1) == 1 &&
         load > static_cast<double>(std::thread::hardware_concurrency());
}

/// Limits the spinning of GNU OpenMP's threads, which by default lasts milliseconds at every
/// barrier. On a busy machine threads then wait for each other's time slices, and a run becomes ten
/// times slower; 20 000 iterations take some 50 us, and where others wait for the processors too,
/// threads sleep at once. Results do not depend on it.
void spin_briefly(char** argv) {
  const bool chosen =
      std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr;
  if (chosen || setenv("GOMP_SPINCOUNT", is_busy() ? "0" : "20000", 1) != 0) return;
  std::error_code error;
  const std::string self = fs::read_symlink("/proc/self/exe", error).string();
  execv(self.c_str(), argv);  // If execv fails, the run continues without the setting.
}

/// Copies the path of the file that is mapped at `address`, cut to `size` bytes, and returns its
/// length. As signal handlers must, it allocates nothing.
size_t mapped_path(uintptr_t address, char* path, size_t size) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  size_t length = 0, field = 0;
  uintptr_t ends[2] = {0, 0};  // Of the range that a line begins with, "FROM-TO ".
  bool found = false, in_path = false;
  for (char c = 0; maps >= 0 && ::read(maps, &c, 1) == 1;) {
    if (c == '\n') {
      if (found) break;
      ends[0] = ends[1] = field = 0;
      in_path = false;
    } else if (field < 2 && (c == '-' || c == ' ')) {
      found = ++field == 2 && ends[0] <= address && address < ends[1];
    } else if (field < 2) {
      ends[field] = 16 * ends[field] + static_cast<uintptr_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    } else if (found && (in_path = in_path || c == '/') && length < size) {
      path[length++] = static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? '?' : c;
    }
  }
  return length;
}

extern "C" void end_by_bus_error(int signal, siginfo_t* info, void*) {
  constexpr std::string_view kBegin = "error: ",
                             kEnd =
                                 ": cannot be read any more; it got shorter, or its disk failed "
                                 "or is full\n";
  char line[PATH_MAX + 128];
  size_t length = kBegin.copy(line, kBegin.size());
  const size_t named =
      info->si_code <= 0  // Another process sent it.
          ? 0
          : mapped_path(reinterpret_cast<uintptr_t>(info->si_addr), line + length, PATH_MAX);
  if (named == 0) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);
    return;
  }
  length += named;
  length += kEnd.copy(line + length, kEnd.size());
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, length);
  ::_exit(1);
}

}  // namespace

void explain_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = &end_by_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

void keep_freed_memory() {
  constexpr int kLargest = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLargest);
  mallopt(M_TRIM_THRESHOLD, kLargest);
}

bool follows_a_leader() {
  try {
    return rank_of(process_environment()) > 0;
  } catch (const Error&) {
    return false;  // Nobody knows which process this is.
  }
}

void log_usage_error(const std::string& what) {
  record_error(what);
  if (!follows_a_leader()) return log_error("{}", what);
  try {
    const Launch launch = read_launch(process_environment());
    if (is_rank_zero_reachable(launch))
      log_error("process {} of {}: {}", launch.rank, launch.world_size, what);
  } catch (const Error&) {
    // On the leader's machine it says the same.
    if (is_local_rank_zero(process_environment())) log_error("{}", what);
  }
}

void let_the_leader_speak() {
  if (!follows_a_leader()) {
    log_threshold();  // A wrong MOESAIC_LOG is named even where the subcommand has nothing to say.
    return;
  }
  set_log_prefix(fmt::format("process {}: ", rank_of(process_environment())));
  const char* const asked = std::getenv("MOESAIC_LOG");
  if (asked != nullptr && *asked != '\0') return;
  setenv("MOESAIC_LOG", "warning", /*overwrite=*/1);
  set_warning_handler([](std::string_view) {});  // Process 0 says it of all until they have met.
}

void record_error(const std::string& what) {
  const char* const file = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (file == nullptr || *file == '\0') return;
  const nlohmann::json error = {
      {"message",
       {{"message", what}, {"extraInfo", {{"timestamp", std::to_string(std::time(nullptr))}}}}}};
  std::ofstream(file) << error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void tune_runtime(char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // A file that may not grow is an error of its write.
  // What c10d has to say of a lost connection, this program says in one line.
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
  c10::initLogging();
  spin_briefly(argv);
  const std::string_view command = argv[1] == nullptr ? "" : argv[1];
  if (command == "import" || command == "export" || command == "inspect") {
    // glibc returns every buffer from 1 MiB when it is freed. Kept ones of tensors that are read
    // and written one after the other leave holes that the next does not fit.
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
  } else if (command != "bench") {  // It has the C library's defaults, like other libraries.
    keep_freed_memory();
  }
}

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

void end_process(int exit_code) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::exit(exit_code);  // Sanitizers report at the exit.
#else
  std::fflush(nullptr);
  _exit(exit_code);
#endif
}

}  // namespace moesaic::tools
