// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "base/support.h"
#include "moesaic/base/file.h"

namespace moesaic {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LockFile, NamesTheHolderToASecondOne) {
  const test::TempDir folder;
  std::optional<LockFile> first(folder.path());
  EXPECT_THAT(
      test::failure_of([&] { LockFile second(folder.path()); }),
      AllOf(HasSubstr(folder.path().string()), HasSubstr("process " + std::to_string(::getpid()))));
  first.reset();
  EXPECT_NO_THROW(LockFile again(folder.path()));
}

TEST(LockFile, DropsWhenItsProcessDies) {
  const test::TempDir folder;
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const LockFile lock(folder.path());
    const char ready = 1;
    if (::write(pipe[1], &ready, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char ready = 0;
  ASSERT_EQ(::read(pipe[0], &ready, 1), 1);
  EXPECT_THAT(test::failure_of([&] { LockFile lock(folder.path()); }),
              HasSubstr("process " + std::to_string(child)));
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_NO_THROW(LockFile lock(folder.path()));
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(LockFile, FollowsNoLink) {
  const test::TempDir folder;
  test::put(folder / "mine", "precious");
  std::filesystem::create_symlink("mine", folder / ".lock");
  EXPECT_EQ(test::failure_of([&] { LockFile lock(folder.path()); }),
            (folder / ".lock").string() + ": a link, which is not followed; remove it");
  EXPECT_EQ(test::get(folder / "mine"), "precious");
}

TEST(LockFile, NeedsItsFolder) {
  const test::TempDir folder;
  EXPECT_THAT(test::failure_of([&] { LockFile lock(folder / "none"); }), HasSubstr("none"));
}

}  // namespace
}  // namespace moesaic
