// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/progress.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <regex>

#include "base/support.h"
#include "moesaic/base/terminal.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

// A file that is no terminal.
class PlainOutput {
 public:
  PlainOutput() : file_(std::tmpfile()) {}
  ~PlainOutput() { std::fclose(file_); }

  std::FILE* file() { return file_; }
  std::vector<std::string> lines() {
    std::rewind(file_);
    std::vector<std::string> all;
    std::array<char, 4096> line;
    while (std::fgets(line.data(), line.size(), file_) != nullptr) all.emplace_back(line.data());
    return all;
  }

 private:
  std::FILE* file_;
};

// A pseudo-terminal of a given width.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) {
    winsize size{};
    size.ws_col = columns;
    size.ws_row = 24;
    int other = -1;
    if (::openpty(&ours_, &other, nullptr, nullptr, &size) != 0) throw std::runtime_error("no pty");
    file_ = ::fdopen(other, "w");
  }
  ~Terminal() {
    std::fclose(file_);
    ::close(ours_);
  }

  std::FILE* file() { return file_; }
  // What was written since the last call.
  std::string take() {
    std::fflush(file_);
    std::string text;
    std::array<char, 4096> piece;
    for (pollfd wait = {ours_, POLLIN, 0}; ::poll(&wait, 1, 0) > 0;) {
      const ssize_t n = ::read(ours_, piece.data(), piece.size());
      if (n <= 0) break;
      text.append(piece.data(), static_cast<std::size_t>(n));
    }
    return text;
  }

 private:
  int ours_ = -1;
  std::FILE* file_ = nullptr;
};

std::string without_codes(const std::string& text) {
  return std::regex_replace(text, std::regex("\x1b\\[[0-9;]*[A-Za-z]|[\r\n]"), "");
}

struct FakeClock {
  double now = 1000.0;
  std::function<double()> function() {
    return [this] { return now; };
  }
};

TEST(Progress, WritesPlainLinesToAFileAboutEveryTenSeconds) {
  PlainOutput out;
  FakeClock clock;
  Progress progress(
      {.label = "train", .total = 1000, .out = out.file(), .clock = clock.function()});
  for (int second = 1; second <= 25; ++second) {
    clock.now += 1.0;
    progress.advance(20, "loss 0.41");
  }
  progress.finish();
  const auto lines = out.lines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "train: 20%, 200/1000 images, 20.0 images/s, 0:40 left, loss 0.41\n");
  EXPECT_EQ(lines[1], "train: 40%, 400/1000 images, 20.0 images/s, 0:30 left, loss 0.41\n");
  EXPECT_EQ(lines[2], "train: 500 images in 0:25, 20.0 images/s, loss 0.41\n");
}

TEST(Progress, WorksWithoutATotal) {
  PlainOutput out;
  FakeClock clock;
  Progress progress(
      {.label = "read", .unit = "rows", .out = out.file(), .clock = clock.function()});
  clock.now += 10.0;
  progress.advance(5);
  EXPECT_EQ(out.lines().at(0), "read: 5 rows, 0.50 rows/s\n");
}

TEST(Progress, CountsOnlyNewItemsAfterAResume) {
  PlainOutput out;
  FakeClock clock;
  Progress progress({.label = "train",
                     .total = 1000,
                     .out = out.file(),
                     .start = 900,
                     .clock = clock.function()});
  clock.now += 10.0;
  progress.advance(50);
  progress.finish();
  EXPECT_EQ(out.lines().at(0), "train: 95%, 950/1000 images, 5.00 images/s, 0:10 left\n");
  EXPECT_EQ(out.lines().at(1), "train: 50 images in 0:10, 5.00 images/s\n");
}

TEST(Progress, ALoopThatCountsItselfStartsTheClockWithItsFirstNumber) {
  PlainOutput out;
  FakeClock clock;
  Progress progress({.label = "eval", .out = out.file(), .clock = clock.function()});
  clock.now += 100.0;  // files are opened
  progress.show(0, 1000);
  clock.now += 10.0;
  progress.show(200, 1000);
  clock.now += 5.0;
  progress.show(1000, 1000);
  progress.finish();
  EXPECT_EQ(out.lines().at(0), "eval: 20%, 200/1000 images, 20.0 images/s, 0:40 left\n");
  EXPECT_EQ(out.lines().at(1), "eval: 1000 images in 0:15, 66.7 images/s\n");
}

TEST(Progress, AveragesTheRateOverTheLastSecondsOnly) {
  PlainOutput out;
  FakeClock clock;
  Progress progress({.label = "x", .total = 100000, .out = out.file(), .clock = clock.function()});
  for (int i = 0; i < 100; ++i) {  // fast at first
    clock.now += 1.0;
    progress.advance(500);
  }
  for (int i = 0; i < 100; ++i) {  // then slow
    clock.now += 1.0;
    progress.advance(5);
  }
  EXPECT_THAT(out.lines().back(), HasSubstr(", 5.00 images/s, 2:45:00 left"));
}

TEST(Progress, WritesNothingBehindAnEarlyEnd) {
  PlainOutput out;
  { Progress progress({.label = "x", .total = 10, .out = out.file()}); }
  EXPECT_TRUE(out.lines().empty());
}

TEST(Progress, SurvivesNoTimeAndTooManyItems) {
  PlainOutput out;
  FakeClock clock;
  Progress progress({.label = "x", .total = 10, .out = out.file(), .clock = clock.function()});
  progress.advance(15);
  clock.now += 10.0;
  progress.advance(5);
  progress.finish();
  progress.finish();
  ASSERT_EQ(out.lines().size(), 2u);
  EXPECT_THAT(out.lines()[0], AllOf(StartsWith("x: 100%, 20/10 images"), HasSubstr("0:00 left")));
}

TEST(Progress, RedrawsATerminalTenTimesASecondAtMost) {
  const test::ScopedEnv no_color("NO_COLOR", "1");
  Terminal terminal(80);
  FakeClock clock;
  Progress progress(
      {.label = "train", .total = 1000, .out = terminal.file(), .clock = clock.function()});
  int drawn = 0;
  for (int i = 0; i < 1000; ++i) {  // one second in all
    clock.now += 0.001;
    progress.advance(1);
    drawn += !terminal.take().empty();
  }
  EXPECT_GE(drawn, 9);
  EXPECT_LE(drawn, 11);
}

TEST(Progress, DrawsBarFractionRateAndNote) {
  const test::ScopedEnv no_color("NO_COLOR", "1");
  Terminal terminal(100);
  FakeClock clock;
  Progress progress(
      {.label = "train", .total = 1000, .out = terminal.file(), .clock = clock.function()});
  clock.now += 5.0;
  progress.advance(500, "loss\n0.41");
  const std::string drawn = terminal.take();
  EXPECT_THAT(drawn, AllOf(StartsWith("\r"), EndsWith("\x1b[K"), Not(HasSubstr("\n"))));
  EXPECT_EQ(without_codes(drawn),
            "train  50% [===============               ] 500/1000 images, 100 images/s, 0:05 left, "
            "loss 0.41");
  progress.finish();
  EXPECT_THAT(terminal.take(), AllOf(StartsWith("\r\x1b[K"), HasSubstr("train: 500 images in 0:05"),
                                     EndsWith("\n")));
}

TEST(Progress, HonoursTheWidthOfTheTerminal) {
  for (const char* refused : {"1", ""}) {
    const test::ScopedEnv no_color("NO_COLOR", refused);
    const test::ScopedEnv kind("TERM", "xterm");
    for (unsigned short columns = 1; columns < 120; ++columns) {
      Terminal terminal(columns);
      FakeClock clock;
      Progress progress({.label = "fine-tune \xc3\xa9",
                         .total = 60000,
                         .out = terminal.file(),
                         .clock = clock.function()});
      clock.now += 3.0;
      progress.advance(4321, "loss 0.41 \xce\xb1\xce\xb2\xce\xb3");
      const std::string text = without_codes(terminal.take());
      const auto shown =
          std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
      EXPECT_LT(shown, columns) << text;
    }
  }
}

TEST(Progress, ColoursOnlyWhereThatIsWanted) {
  const auto drawn = [] {
    Terminal terminal(100);
    Progress progress({.label = "x", .total = 10, .out = terminal.file()});
    progress.advance(5);
    return terminal.take();
  };
  const test::ScopedEnv kind("TERM", "xterm");
  {
    const test::ScopedEnv none("NO_COLOR", std::nullopt);
    EXPECT_THAT(drawn(), HasSubstr("\x1b[32m"));
    const test::ScopedEnv dumb("TERM", "dumb");
    EXPECT_THAT(drawn(), Not(HasSubstr("\x1b[32m")));
  }
  const test::ScopedEnv refused("NO_COLOR", "1");
  EXPECT_THAT(drawn(), Not(HasSubstr("\x1b[32m")));
}

TEST(Progress, EndsItsLineWhenAnExceptionPasses) {
  Terminal terminal(80);
  {
    Progress progress({.label = "x", .total = 10, .out = terminal.file()});
    progress.advance(1);
    terminal.take();
  }
  EXPECT_THAT(terminal.take(), EndsWith("\n"));
}

TEST(Terminal, TellsATerminalFromAFile) {
  PlainOutput plain;
  Terminal terminal(57);
  EXPECT_FALSE(is_terminal(plain.file()));
  EXPECT_TRUE(is_terminal(terminal.file()));
  EXPECT_EQ(terminal_columns(terminal.file()), 57);
  EXPECT_EQ(terminal_columns(plain.file()), 80);
}

TEST(Progress, LeavesNothingBehindWithinOtherWork) {
  double now = 0.0;
  Terminal terminal(80);
  {
    Progress bar({.label = "testing", .out = terminal.file(), .has_summary = false, .clock = [&] {
                    return now;
                  }});
    bar.show(0, 100);
    now = 1.0;
    bar.show(50, 100);
    EXPECT_THAT(without_codes(terminal.take()),
                HasSubstr("50/100 images, 50.0 images/s, 0:01 left"));
  }
  EXPECT_EQ(terminal.take(), "\r\x1b[K");
}

TEST(Progress, TimeOfOtherWorkIsNotInTheRate) {
  double now = 0.0;
  PlainOutput out;
  Progress bar({.label = "a", .total = 100, .out = out.file(), .clock = [&] { return now; }});
  now = 10.0;
  bar.advance(50);
  now = 60.0;
  bar.exclude_time(50.0);
  bar.finish();
  EXPECT_EQ(out.lines().back(), "a: 50 images in 0:10, 5.00 images/s\n");
}

TEST(Progress, CountsOneInTheSingular) {
  double now = 0.0;
  PlainOutput out;
  Progress bar({.label = "a", .out = out.file(), .clock = [&] { return now; }});
  bar.advance(1);
  bar.finish();
  EXPECT_EQ(out.lines().back(), "a: 1 image in 0:00\n");
}

}  // namespace
}  // namespace moesaic
