// SPDX-License-Identifier: Apache-2.0
#include "support/faults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <exception>

#include "base/support.h"
#include "moesaic/base/process.h"

namespace moesaic::test {
namespace {

namespace fs = std::filesystem;

using Arm = void (*)(const char* call, long n, const char* effect, const char* folder);
using Fired = int (*)();

template <class F>
F of_library(const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_DEFAULT, name));
}

/// Runs the action as the program does; returns its exit code and what it says.
std::pair<int, std::string> ended(const std::function<void()>& action) {
  try {
    action();
    return {0, ""};
  } catch (const Error& error) {
    return {error.exit_code(), error.what()};
  } catch (const std::exception& error) {
    return {1, error.what()};
  }
}

[[noreturn]] void be_child(const Fault& fault, int n, const fs::path& folder,
                           const std::function<void()>& action, int out) {
  const int nowhere = ::open("/dev/null", O_WRONLY);
  ::dup2(nowhere, STDERR_FILENO);
  of_library<Arm>("moesaic_fault")(fault.call.c_str(), n, fault.effect.c_str(), folder.c_str());
  const auto [code, text] = ended(action);
  const std::string told = (of_library<Fired>("moesaic_fault_fired")() != 0 ? "1" : "0") + text;
  ::_exit(::write(out, told.data(), told.size()) < 0 ? 99 : code);
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> piece{};
  for (ssize_t n = 1; n > 0; text.append(piece.data(), static_cast<size_t>(n))) {
    n = std::max<ssize_t>(0, ::read(fd, piece.data(), piece.size()));
  }
  return text;
}

}  // namespace

bool has_faults() {
  return of_library<Arm>("moesaic_fault") != nullptr;
}

void run_again_with_faults() {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  const TempDir folder;
  // By its process, since a build may have replaced the file.
  const std::string command =
      fmt::format("OMP_NUM_THREADS=1 LD_PRELOAD={} /proc/{}/exe --gtest_filter={}.{} > {} 2>&1",
                  shell_quoted(MOESAIC_FAULTS_LIBRARY), ::getpid(), test->test_suite_name(),
                  test->name(), shell_quoted((folder / "log").string()));
  EXPECT_EQ(std::system(command.c_str()), 0) << get(folder / "log");
}

Outcome run_with_fault(const Fault& fault, int n, const fs::path& folder,
                       const std::function<void()>& action) {
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) throw std::runtime_error("pipe failed");
  const pid_t child = ::fork();
  if (child == 0) be_child(fault, n, folder, action, pipe[1]);
  ::close(pipe[1]);
  const std::string told = read_all(pipe[0]);
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status)) return {true, 128 + WTERMSIG(status), ""};
  return {told.starts_with('1'), WEXITSTATUS(status),
          told.substr(std::min<size_t>(1, told.size()))};
}

int for_every_call(const Fault& fault, const fs::path& folder, const std::function<void()>& prepare,
                   const std::function<void()>& action,
                   const std::function<void(const Outcome&)>& check) {
  for (int n = 1;; ++n) {
    SCOPED_TRACE(fmt::format("{} number {}: {}", fault.call, n, fault.effect));
    prepare();
    const Outcome outcome = run_with_fault(fault, n, folder, action);
    EXPECT_EQ(outcome.error.find('\n'), std::string::npos) << outcome.error;
    EXPECT_EQ(outcome.exit_code == 1, !outcome.error.empty()) << outcome.error;
    if (!outcome.fired) {
      EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
      check(outcome);
      return n - 1;
    }
    check(outcome);
    if (::testing::Test::HasFailure()) return n;
  }
}

}  // namespace moesaic::test
