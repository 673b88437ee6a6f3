// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/posix.h"

namespace moesaic {
namespace {

// Blocks SIGPIPE in this thread, since writing to a program that has exited raises it. A SIGPIPE
// that became pending meanwhile is consumed, unless one was pending before.
class BlockedSigpipe {
 public:
  BlockedSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &former_);
  }
  BlockedSigpipe(const BlockedSigpipe&) = delete;
  BlockedSigpipe& operator=(const BlockedSigpipe&) = delete;
  ~BlockedSigpipe() {
    const timespec at_once{};
    while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &at_once) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &former_, nullptr);
  }

  const sigset_t& former() const { return former_; }

 private:
  sigset_t pipe_{};
  sigset_t former_{};
  bool was_pending_ = false;
};

struct SpawnActions {
  posix_spawn_file_actions_t value;
  SpawnActions() { posix_spawn_file_actions_init(&value); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  ~SpawnActions() { posix_spawn_file_actions_destroy(&value); }
};

struct SpawnAttributes {
  posix_spawnattr_t value;
  SpawnAttributes() { posix_spawnattr_init(&value); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  ~SpawnAttributes() { posix_spawnattr_destroy(&value); }
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
            const std::filesystem::path& folder, int standard_input, int output,
            const sigset_t& mask) {
  const std::vector<char*> arguments = pointers(argv);
  const std::vector<char*> variables = pointers(environment);
  SpawnActions actions;
  posix_spawn_file_actions_adddup2(&actions.value, standard_input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions.value, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions.value, output, STDERR_FILENO);
  if (!folder.empty()) posix_spawn_file_actions_addchdir_np(&actions.value, folder.c_str());
  SpawnAttributes attributes;
  posix_spawnattr_setsigmask(&attributes.value, &mask);
  posix_spawnattr_setflags(&attributes.value, POSIX_SPAWN_SETSIGMASK);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0].c_str(), &actions.value, &attributes.value,
                                 arguments.data(), variables.data());
  if (error == ENOENT) fail("{}: no such program; is it installed and on PATH?", argv[0]);
  if (error != 0) fail_errno(argv[0], "cannot run", error);
  return child;
}

// Writes the input; stops early without an error if the reader closes the pipe.
void feed(int fd, std::string_view input) {
  while (!input.empty()) {
    const ssize_t n = ::write(fd, input.data(), input.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;
    input.remove_prefix(static_cast<std::size_t>(n));
  }
}

int wait_for(pid_t child, const std::string& program) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail_errno(program, "cannot wait for it");
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// Returns all that was written to a file without a name.
std::string content_of(int fd) {
  std::string text;
  std::array<char, 4096> part{};
  ssize_t n = 0;
  while ((n = ::pread(fd, part.data(), part.size(), static_cast<off_t>(text.size()))) > 0) {
    text.append(part.data(), static_cast<std::size_t>(n));
  }
  return text;
}

}  // namespace

int run_with_input(const std::vector<std::string>& argv, std::string_view input,
                   const std::vector<std::string>& environment, const std::filesystem::path& folder,
                   std::string* said) {
  if (argv.empty()) fail_usage("run_with_input: no program given");
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno(argv[0], "cannot make a pipe");
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  // A file, since a program that waits for its output to be read would not read its input.
  const UniqueFd kept(said == nullptr ? -1 : ::memfd_create(argv[0].c_str(), MFD_CLOEXEC));
  if (said != nullptr && kept.get() < 0) fail_errno(argv[0], "cannot keep what it prints");
  pid_t child = 0;
  {
    const BlockedSigpipe blocked;
    child = spawn(argv, environment_with(environment), folder, reading.get(),
                  said == nullptr ? STDERR_FILENO : kept.get(), blocked.former());
    reading.reset();
    feed(writing.get(), input);
  }
  writing.reset();  // Closing signals the end of the input.
  const int status = wait_for(child, argv[0]);
  if (said != nullptr) *said = content_of(kept.get());
  return status;
}

std::filesystem::path find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    const std::filesystem::path place = std::filesystem::path(folder) / name;
    std::error_code ignored;
    const bool file = std::filesystem::is_regular_file(place, ignored);
    if (file && ::access(place.c_str(), X_OK) == 0) return place;
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

}  // namespace moesaic
