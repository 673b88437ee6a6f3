// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/process.h"

#include <gmock/gmock.h>

#include <csignal>
#include <stdexcept>

#include "base/support.h"

namespace moesaic {
namespace {

using RunWithInput = test::InFolder;

TEST_F(RunWithInput, FeedsTheProgram) {
  const std::string large(1'000'000, 'x');  // more than a pipe holds
  EXPECT_EQ(run_with_input({"tee", (folder / "copy").string()}, ""), 0);
  EXPECT_EQ(test::get(folder / "copy"), "");
  EXPECT_EQ(run_with_input({"sh", "-c", "cat > \"$0\"", (folder / "copy").string()}, large), 0);
  EXPECT_EQ(test::get(folder / "copy"), large);
}

TEST_F(RunWithInput, ReturnsTheExitStatus) {
  EXPECT_EQ(run_with_input({"sh", "-c", "exit 7"}, ""), 7);
  EXPECT_EQ(run_with_input({"sh", "-c", "kill -TERM $$"}, ""), 128 + SIGTERM);
}

TEST_F(RunWithInput, VariablesGivenReplaceThoseInherited) {
  const test::ScopedEnv inherited("MOESAIC_TEST_A", "old");
  const test::ScopedEnv kept("MOESAIC_TEST_AB", "kept");
  const char* check = "test \"$MOESAIC_TEST_A$MOESAIC_TEST_AB$MOESAIC_TEST_C\" = newkeptmore";
  EXPECT_EQ(run_with_input({"sh", "-c", check}, "", {"MOESAIC_TEST_A=new", "MOESAIC_TEST_C=more"}),
            0);
  EXPECT_EQ(run_with_input({"sh", "-c", "test $MOESAIC_TEST_A = old"}, ""), 0);
}

TEST_F(RunWithInput, RunsInAnyFolder) {
  const std::filesystem::path odd = folder / "~\n'";
  std::filesystem::create_directory(odd);
  EXPECT_EQ(run_with_input({"sh", "-c", "cat > here"}, "x", {}, odd), 0);
  EXPECT_EQ(test::get(odd / "here"), "x");
}

TEST_F(RunWithInput, SurvivesAProgramThatDoesNotRead) {
  struct sigaction before {};
  ::sigaction(SIGPIPE, nullptr, &before);
  ASSERT_EQ(before.sa_handler, SIG_DFL) << "or this test shows nothing";
  EXPECT_EQ(run_with_input({"true"}, std::string(1'000'000, 'x')), 0);
  sigset_t pending;
  ASSERT_EQ(::sigpending(&pending), 0);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
  sigset_t blocked;
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, nullptr, &blocked), 0);
  EXPECT_EQ(sigismember(&blocked, SIGPIPE), 0);
}

TEST_F(RunWithInput, LeavesTheProgramItsOwnSigpipe) {
  // 0x1000 stands for SIGPIPE (13): the child must not inherit our protection.
  EXPECT_EQ(run_with_input({"sh", "-c",
                            "m=$(sed -n 's/^SigBlk:[[:space:]]*//p' /proc/self/status); "
                            "[ $((0x$m & 0x1000)) -eq 0 ]"},
                           ""),
            0);
}

TEST_F(RunWithInput, KeepsStandardOutputForUs) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(test::said_by([] { run_with_input({"sh", "-c", "echo chatter"}, ""); }), "chatter\n");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

TEST_F(RunWithInput, KeepsAllThatTheProgramPrintsWhereItIsAskedTo) {
  const std::string input = std::string(100'000, 'x') + "\n";
  std::string printed;
  const auto run = [&] {
    const std::vector<std::string> command = {"sh", "-c", "cat; echo trouble >&2; exit 3"};
    EXPECT_EQ(run_with_input(command, input, {}, {}, &printed), 3);
  };
  EXPECT_EQ(test::said_by(run), "");
  EXPECT_EQ(printed, input + "trouble\n");
}

TEST_F(RunWithInput, KillsTheProgramWherePollThrows) {
  const std::string pid = (folder / "pid").string();
  const auto stop = [&] {
    if (test::get(pid).ends_with("\n")) throw std::runtime_error("stopped");
  };
  test::put(pid, "");
  EXPECT_THROW(run_with_input({"sh", "-c", "echo $$ > \"$0\"; exec sleep 1000", pid}, "", {}, {},
                              nullptr, stop),
               std::runtime_error);
  EXPECT_EQ(::kill(std::stoi(test::get(pid)), 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST_F(RunWithInput, CallsPollAfterTheEndOfTheProgram) {
  const std::string file = (folder / "made").string();
  bool was_made = false;
  const auto look = [&] { was_made = std::filesystem::exists(file); };
  EXPECT_EQ(run_with_input({"touch", file}, "", {}, {}, nullptr, look), 0);
  EXPECT_TRUE(was_made);
}

TEST_F(RunWithInput, NamesAMissingProgram) {
  EXPECT_THAT(test::failure_of([] { run_with_input({"no-such-program-here"}, "x"); }),
              ::testing::HasSubstr("no-such-program-here: no such program"));
  EXPECT_THAT(test::failure_of([&] { run_with_input({folder.path().string()}, "x"); }),
              ::testing::HasSubstr("cannot run"));
  test::usage_of([] { run_with_input({}, ""); });
}

TEST(FindProgram, SearchesPath) {
  EXPECT_EQ(find_program("sh").filename(), "sh");
  EXPECT_EQ(find_program("no-such-program-here"), "");
  const test::TempDir folder;
  test::put(folder / "tool", "not executable");
  const test::ScopedEnv path("PATH", folder.path().string());
  EXPECT_EQ(find_program("tool"), "");
  EXPECT_EQ(find_program("sh"), "");
}

TEST(ShellQuoted, QuotesOnlyWhatNeedsIt) {
  EXPECT_EQ(shell_quoted("runs/a-b_1.json"), "runs/a-b_1.json");
  EXPECT_EQ(shell_quoted("seed=2"), "seed=2");
  EXPECT_EQ(shell_quoted(""), "''");
  EXPECT_EQ(shell_quoted("my run"), "'my run'");
  EXPECT_EQ(shell_quoted("it's [1]"), "'it'\\''s [1]'");
}

}  // namespace
}  // namespace moesaic
