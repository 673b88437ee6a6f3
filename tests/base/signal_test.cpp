// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/signal.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "base/support.h"

namespace moesaic {
namespace {

TEST(StopSignal, RemembersTheFirstSignal) {
  std::signal(SIGHUP, SIG_DFL);  // What nohup ignores stays ignored.
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const StopSignal stop;
    EXPECT_FALSE(stop.is_requested());
    EXPECT_EQ(stop.number(), 0);
    std::raise(number);
    EXPECT_TRUE(stop.is_requested());
    EXPECT_EQ(stop.number(), number);
  }
}

TEST(StopSignal, LivesOnlyOnce) {
  const StopSignal stop;
  test::usage_of([] { StopSignal second; });
  std::raise(SIGTERM);  // the first one is still in force
  EXPECT_EQ(stop.number(), SIGTERM);
}

TEST(StopSignal, OneThatFollowsAtOnceChangesNothing) {
  const StopSignal stop(std::chrono::hours(1));
  for (const int number : {SIGINT, SIGINT, SIGTERM, SIGHUP}) std::raise(number);
  EXPECT_EQ(stop.number(), SIGINT);
}

TEST(StopSignal, IsSaidAtOnceAndOnce) {
  const auto said = [](std::chrono::seconds again) {
    const StopSignal stop(again);
    return test::said_by([&] {
      std::raise(SIGINT);
      if (again.count() > 0) std::raise(SIGTERM);
    });
  };
  EXPECT_EQ(said(std::chrono::seconds(3600)),
            "stopping; a second signal, 3600 seconds from now or later, ends the program at once, "
            "without saving\n");
  EXPECT_EQ(said(std::chrono::seconds(0)),
            "stopping; a second signal ends the program at once, without saving\n");
}

TEST(StopSignalDeathTest, ALaterOneExitsAtOnceWithACodeOfItsOwn) {
  const auto twice = [](int first, int second) {
    const StopSignal stop(std::chrono::seconds(0));
    std::raise(first);
    std::raise(second);
    std::exit(0);
  };
  EXPECT_EXIT(twice(SIGINT, SIGINT), ::testing::ExitedWithCode(4), "\nerror: another signal");
  EXPECT_EXIT(twice(SIGINT, SIGTERM), ::testing::ExitedWithCode(4), "\nerror: another signal");
}

TEST(StopSignalDeathTest, GivesBackTheFormerHandlers) {
  const auto after = [] {
    { const StopSignal stop; }
    std::raise(SIGTERM);
    std::exit(0);
  };
  EXPECT_EXIT(after(), ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopSignalDeathTest, WorksWhereAShellHadIgnoredIt) {
  const auto ignored = [] {
    std::signal(SIGINT, SIG_IGN);
    const StopSignal stop;
    std::raise(SIGINT);
    std::exit(stop.number() == SIGINT ? 0 : 1);
  };
  EXPECT_EXIT(ignored(), ::testing::ExitedWithCode(0), "");
}

TEST(StopSignal, LeavesAHangUpIgnoredAsNohupHasIt) {
  const auto former = std::signal(SIGHUP, SIG_IGN);
  {
    const StopSignal stop;
    std::raise(SIGHUP);
    EXPECT_FALSE(stop.is_requested());
  }
  std::signal(SIGHUP, former);
}

/// Returns the writing end of a pipe that nobody reads.
int closed_pipe() {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) std::abort();
  ::close(ends[0]);
  return ends[1];
}

TEST(StopSignalDeathTest, RemembersThatItsOutputWasClosedAndGoesOn) {
  for (const int output : {STDOUT_FILENO, STDERR_FILENO}) {
    const auto print = [output] {
      std::signal(SIGPIPE, SIG_DFL);
      ::dup2(closed_pipe(), output);
      const StopSignal stop(std::chrono::seconds(0));
      const bool refused = ::write(output, "a", 1) < 0 && ::write(output, "b", 1) < 0;
      std::_Exit(refused && stop.number() == SIGPIPE ? 7 : 1);
    };
    EXPECT_EXIT(print(), ::testing::ExitedWithCode(7), "");
  }
}

TEST(StopSignal, PassesOverTheEndOfAPipeThatIsNotItsOutput) {
  const auto former = std::signal(SIGPIPE, SIG_DFL);
  {
    const StopSignal stop;
    const int pipe = closed_pipe();
    EXPECT_LT(::write(pipe, "a", 1), 0);
    EXPECT_FALSE(stop.is_requested());
    ::close(pipe);
  }
  std::signal(SIGPIPE, former);
}

TEST(StopSignal, LeavesAClosedPipeIgnoredWhereItWas) {
  const auto former = std::signal(SIGPIPE, SIG_IGN);
  {
    const StopSignal stop;
    std::raise(SIGPIPE);
    EXPECT_FALSE(stop.is_requested());
  }
  std::signal(SIGPIPE, former);
}

}  // namespace
}  // namespace moesaic
