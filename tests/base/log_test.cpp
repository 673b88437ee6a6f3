// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/log.h"

#include <cstdlib>

#include "base/support.h"

namespace moesaic {
namespace {

// The level is read once in a process, so each case runs in one of its own.
void log_everything_and_exit() {
  log_debug("a {}", 1);
  log_info("b {}", 2);
  log_warning("c {}", 3);
  log_error("d {}", 4);
  std::exit(0);
}

class LogDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(LogDeathTest, ShowsInfoAndAboveByDefault) {
  const test::ScopedEnv env("MOESAIC_LOG", std::nullopt);
  EXPECT_EXIT(log_everything_and_exit(), ::testing::ExitedWithCode(0),
              "^b 2\nwarning: c 3\nerror: d 4\n$");
}

TEST_F(LogDeathTest, TakesTheLevelFromTheEnvironment) {
  const test::ScopedEnv error("MOESAIC_LOG", "error");
  EXPECT_EXIT(log_everything_and_exit(), ::testing::ExitedWithCode(0), "^error: d 4\n$");
  const test::ScopedEnv debug("MOESAIC_LOG", "debug");
  EXPECT_EXIT(log_everything_and_exit(), ::testing::ExitedWithCode(0), "^debug: a 1\nb 2\n");
}

TEST(Log, EscapesCommandsOfTerminals) {
  ::testing::internal::CaptureStderr();
  log_error("MANIFEST.json: '{}' is not a file name", "\x1b]0;title\x07\nerror: none");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "error: MANIFEST.json: '\\x1b]0;title\\x07\\nerror: none' is not a file name\n");
}

TEST(Log, SaysOnceWhatIsSaidOften) {
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) log_once(LogLevel::warning, "said once");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "warning: said once\n");
}

TEST(Log, SaysTheFirstLineOfATopic) {
  ::testing::internal::CaptureStderr();
  for (const char* line : {"first", "second"}) log_once(LogLevel::warning, line, "a topic");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "warning: first\n");
}

TEST_F(LogDeathTest, SaysSoWhenTheLevelIsUnknown) {
  const test::ScopedEnv env("MOESAIC_LOG", "warnin");
  EXPECT_EXIT(log_everything_and_exit(), ::testing::ExitedWithCode(0),
              "MOESAIC_LOG=warnin is not a log level; did you mean 'warning'.*\nb 2\n");
}

}  // namespace
}  // namespace moesaic
