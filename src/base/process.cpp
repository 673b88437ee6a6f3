// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/process.h"

#include <malloc.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <span>
#include <thread>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

struct SpawnActions {
  posix_spawn_file_actions_t value;
  SpawnActions() { posix_spawn_file_actions_init(&value); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  ~SpawnActions() { posix_spawn_file_actions_destroy(&value); }
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
  list.push_back(nullptr);
  return list;
}

/// Returns this process's environment, with `first` overriding variables of the same names.
std::vector<std::string> environment_with(const std::vector<std::string>& first) {
  std::vector<std::string> all = first;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('=') + 1);
    const bool replaced = std::any_of(first.begin(), first.end(),
                                      [&](const std::string& f) { return f.starts_with(name); });
    if (!replaced) all.emplace_back(text);
  }
  return all;
}

pid_t spawn(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
            const fs::path& folder, int input, int output) {
  const std::vector<char*> arguments = pointers(argv);
  const std::vector<char*> variables = pointers(environment);
  SpawnActions actions;
  posix_spawn_file_actions_adddup2(&actions.value, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions.value, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions.value, output, STDERR_FILENO);
  if (!folder.empty()) posix_spawn_file_actions_addchdir_np(&actions.value, folder.c_str());
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0].c_str(), &actions.value, nullptr, arguments.data(),
                                 variables.data());
  if (error == ENOENT) fail("{}: no such program; install it or add its folder to PATH", argv[0]);
  if (error != 0) fail_errno(argv[0], "cannot run", error);
  return child;
}

/// Waits for the end of the child, or only looks for it with WNOHANG; returns whether it ended.
bool wait_once(pid_t child, const std::string& program, int options, int& status) {
  const pid_t ended = TEMP_FAILURE_RETRY(::waitpid(child, &status, options));
  if (ended < 0) fail_errno(program, "cannot wait for it");
  return ended == child;
}

int wait_for(pid_t child, const std::string& program, const std::function<void()>& poll) {
  constexpr std::chrono::milliseconds kPeriod(20);
  int status = 0;
  while (!wait_once(child, program, poll ? WNOHANG : 0, status)) {
    try {
      poll();
    } catch (...) {
      ::kill(child, SIGKILL);
      wait_once(child, program, 0, status);
      throw;
    }
    std::this_thread::sleep_for(kPeriod);
  }
  if (poll) poll();  // What ended the program may be the signal that ends this one.
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// Returns a file in memory. Unlike a pipe it never fills up, whichever end is read or written
/// first, and a program that does not read its input does no harm.
UniqueFd nameless_file(const std::string& program, std::string_view content) {
  UniqueFd file(::memfd_create("moesaic", MFD_CLOEXEC));
  if (!file) fail_errno(program, "cannot create a file in memory");
  write_all(file.get(), std::as_bytes(std::span(content)), program);
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

double of_machine() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<double>(pages) * static_cast<double>(size) : kNoLimit;
}

/// Returns the container's memory limit in bytes. "max", which is not a number, means no limit.
double of_container() {
  double min = kNoLimit;
  for (const char* file :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream in(file);
    if (double bytes = 0.0; in >> bytes && bytes > 0.0) min = std::min(min, bytes);
  }
  return min;
}

double of_shell() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  return static_cast<double>(limit.rlim_cur);
}

}  // namespace

int run_with_input(const std::vector<std::string>& argv, std::string_view input,
                   const std::vector<std::string>& environment, const fs::path& folder,
                   std::string* output, const std::function<void()>& poll) {
  if (argv.empty()) fail_usage("run_with_input: no program given");
  const UniqueFd given = nameless_file(argv[0], input);
  const UniqueFd kept = output == nullptr ? UniqueFd() : nameless_file(argv[0], "");
  const pid_t child = spawn(argv, environment_with(environment), folder, given.get(),
                            output == nullptr ? STDERR_FILENO : kept.get());
  const int status = wait_for(child, argv[0], poll);
  if (output != nullptr) *output = read_text(fmt::format("/proc/self/fd/{}", kept.get()));
  return status;
}

fs::path find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    const fs::path place = fs::path(folder) / name;
    if (fs::is_regular_file(status_of(place)) && ::access(place.c_str(), X_OK) == 0) return place;
  }
  return {};
}

std::string shell_quoted(std::string_view word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("-_./=:,+@%").find(c) != std::string_view::npos;
  });
  if (plain) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

double memory_limit() {
  return std::min({of_machine(), of_container(), of_shell()});
}

double resident_memory() {
  std::ifstream in("/proc/self/statm");
  double size = 0.0, resident = 0.0;
  in >> size >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

void release_freed_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

void check_memory(double bytes, const std::string& what, const std::string& where) {
  const double limit = memory_limit();
  if (bytes <= limit) return;
  fail_usage("{}: {} needs {} of memory, this machine has {}", where, what, bytes_text(bytes),
             bytes_text(limit));
}

}  // namespace moesaic
