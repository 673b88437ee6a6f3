// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/holding_process.h"
#include "base/support.h"
#include "moesaic/base/file.h"
#include "support/matchers.h"

namespace {

thread_local std::function<void()> before_lock;  // Called once, by the next call of flock().

}  // namespace

// In place of the C library's, in the whole program.
extern "C" int flock(int fd, int operation) noexcept {
  if (const auto call = std::exchange(before_lock, nullptr)) call();
  return static_cast<int>(::syscall(SYS_flock, fd, operation));
}

namespace moesaic {
namespace {

namespace fs = std::filesystem;

std::string lock_failure(const fs::path& folder) {
  return test::failure_of([&] { LockFile lock(folder); });
}

TEST(LockFile, NamesTheHolderToASecondOne) {
  const test::TempDir folder;
  std::optional<LockFile> first(folder.path());
  EXPECT_THAT(
      lock_failure(folder.path()),
      AllOf(HasSubstr(folder.path().string()), HasSubstr("process " + std::to_string(::getpid()))));
  first.reset();
  EXPECT_NO_THROW(LockFile again(folder.path()));
}

TEST(LockFile, DropsWhenItsProcessDies) {
  const test::TempDir folder;
  test::HoldingProcess other([&] { return std::make_unique<LockFile>(folder.path()); });
  EXPECT_THAT(lock_failure(folder.path()), HasSubstr("process " + std::to_string(other.id())));
  other.kill();
  EXPECT_NO_THROW(LockFile lock(folder.path()));
}

TEST(LockFile, FollowsNoLink) {
  const test::TempDir folder;
  test::put(folder / "mine", "precious");
  fs::create_symlink("mine", folder / ".lock");
  EXPECT_EQ(lock_failure(folder.path()),
            (folder / ".lock").string() + ": a link, which is not followed; remove it");
  EXPECT_EQ(test::get(folder / "mine"), "precious");
}

TEST(LockFile, IsTheFileThatHasTheName) {
  const test::TempDir folder;
  std::optional<LockFile> other;
  before_lock = [&] {  // The first one has opened the file and not locked it.
    fs::remove(folder / ".lock");
    other.emplace(folder.path());
  };
  EXPECT_THAT(lock_failure(folder.path()), HasSubstr("in use by"));
  before_lock = nullptr;
  other.reset();
  EXPECT_NO_THROW(LockFile lock(folder.path()));
}

TEST(LockFile, LocksAFileOfOtherNamesAndWritesNothingToIt) {
  const test::TempDir folder;
  test::put(folder / "mine", "1234\n");  // As where a backup holds a lock file of before.
  fs::create_hard_link(folder / "mine", folder / ".lock");
  const LockFile lock(folder.path());
  EXPECT_THAT(lock_failure(folder.path()), HasSubstr("in use by another process"));
  EXPECT_EQ(test::get(folder / "mine"), "1234\n");
}

TEST(OpenWithoutLinks, WritesToNoFileOfOtherNames) {
  const test::TempDir folder;
  { const UniqueFd made = open_without_links(folder / "new", O_WRONLY | O_APPEND); }
  EXPECT_EQ(test::get(folder / "new"), "");
  test::put(folder / "mine", "precious");
  fs::create_hard_link(folder / "mine", folder / "linked");
  const std::string name = (folder / "linked").string();
  EXPECT_EQ(
      test::failure_of([&] { open_without_links(name, O_WRONLY | O_APPEND); }),
      name +
          ": has 2 names (hard links), all of which would show what is written; remove this name, "
          "or copy the file: cp -p '" +
          name + "' '" + name + ".copy' && mv '" + name + ".copy' '" + name + "'");
  fs::create_symlink("mine", folder / "link");
  EXPECT_THAT(test::failure_of([&] { open_without_links(folder / "link", O_WRONLY | O_APPEND); }),
              HasSubstr("link: a link, which is not followed; remove it"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(test::failure_of([&] { open_without_links(folder / "pipe", O_WRONLY | O_APPEND); }),
              HasSubstr("pipe: not a regular file; remove it"));
}

TEST(LockFile, WritesNothingToAFileWithOtherContent) {
  const test::TempDir folder;
  for (const char* text :
       {"my notes", "12 eggs\n", "1\n2\n", "00000000000000000000000000000000000 words"}) {
    test::put(folder / ".lock", text);
    const LockFile lock(folder.path());
    EXPECT_THAT(lock_failure(folder.path()), HasSubstr("in use by another process"));
    EXPECT_EQ(test::get(folder / ".lock"), text);
  }
}

TEST(LockFile, NeedsItsFolder) {
  const test::TempDir folder;
  EXPECT_THAT(lock_failure(folder / "none"), HasSubstr("none"));
}

}  // namespace
}  // namespace moesaic
