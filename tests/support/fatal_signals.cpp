// SPDX-License-Identifier: Apache-2.0
// A test program that dies says in which test, and where the thread was that ended it.
#include <execinfo.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string_view>
#include <tuple>

namespace moesaic::test {
namespace {

void say(std::string_view text) {
  std::ignore = ::write(STDERR_FILENO, text.data(), text.size());
}

/// The signal has its usual effect afterwards. Nothing here needs memory, which may be corrupt.
void say_where(int number) {
  if (const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info()) {
    say("\nended by a signal in ");
    say(test->test_suite_name());
    say(".");
    say(test->name());
    say("\n");
  }
  std::array<void*, 64> frames = {};
  ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), frames.size()), STDERR_FILENO);
  std::ignore = std::raise(number);
}

class SaysWhereItDies : public ::testing::Environment {
 public:
  void SetUp() override {
    std::array<void*, 1> frame = {};
    ::backtrace(frame.data(), frame.size());  // Loads what it needs.
    struct sigaction action = {};
    action.sa_handler = say_where;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE}) {
      ::sigaction(number, &action, nullptr);
    }
  }
};

const auto* const kInstalled = ::testing::AddGlobalTestEnvironment(new SaysWhereItDies);

}  // namespace
}  // namespace moesaic::test
