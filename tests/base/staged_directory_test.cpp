// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <thread>

#include "base/support.h"
#include "moesaic/base/file.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

void stage(const fs::path& place, std::string_view content) {
  StagedDirectory staged(place);
  fs::create_directories(staged.path() / "inner");
  test::put(staged.path() / "inner/x", content);
  staged.commit();
}

TEST(StagedDirectory, AppearsCompleteOnCommit) {
  const test::TempDir folder;
  StagedDirectory staged(folder / "a/b/place");
  EXPECT_EQ(staged.path().parent_path(), folder / "a/b");
  test::put(staged.path() / "x", "content");
  EXPECT_FALSE(fs::exists(folder / "a/b/place"));
  staged.commit();
  EXPECT_EQ(test::get(folder / "a/b/place/x"), "content");
  EXPECT_FALSE(fs::exists(staged.path()));
  test::usage_of([&] { staged.commit(); });
}

TEST(StagedDirectory, LeavesNothingWithoutCommit) {
  const test::TempDir folder;
  {
    const StagedDirectory staged(folder / "place");
    test::put(staged.path() / "x", "content");
  }
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(StagedDirectory, ReplacesAnOlderOneAtomically) {
  const test::TempDir folder;
  fs::create_directory(folder / "place");
  test::put(folder / "place/old", "old");
  stage(folder / "place/", "new");
  EXPECT_EQ(test::get(folder / "place/inner/x"), "new");
  EXPECT_FALSE(fs::exists(folder / "place/old"));
  EXPECT_THAT(folder.names(), ElementsAre("place"));
}

TEST(StagedDirectory, IsNeverMissingWhileItIsReplaced) {
  const test::TempDir folder;
  const fs::path place = folder / "place";
  stage(place, "0");
  std::atomic<bool> done{false};
  std::atomic<int> looks{0};
  std::atomic<int> missing{0};
  std::thread reader([&] {
    while (!done) {
      // open() resolves the whole path in one system call, so it sees one moment.
      const int fd = ::open((place / "inner/x").c_str(), O_RDONLY);
      missing += fd < 0;
      ++looks;
      if (fd >= 0) ::close(fd);
    }
  });
  for (int i = 1; i <= 50 || looks < 1000; ++i) stage(place, std::to_string(i));
  done = true;
  reader.join();
  EXPECT_EQ(missing, 0) << "of " << looks;
}

// Makes renameat2 answer EINVAL, as on a file system without RENAME_EXCHANGE.
bool forbid_exchange() {
  std::array<sock_filter, 4> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter = {program.size(), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(StagedDirectoryDeathTest, FallsBackWhereExchangeIsMissing) {
  const test::TempDir folder;
  fs::create_directory(folder / "place");
  test::put(folder / "place/old", "old");
  const auto replace_without_exchange = [&] {
    if (!forbid_exchange()) ::_exit(77);
    if (::renameat2(AT_FDCWD, "/", AT_FDCWD, "/", RENAME_EXCHANGE) == 0 || errno != EINVAL) {
      ::_exit(78);  // the filter is not in force
    }
    stage(folder / "place", "new");
    const bool good = test::get(folder / "place/inner/x") == "new" && folder.names().size() == 1;
    ::_exit(good ? 0 : 1);
  };
  EXPECT_EXIT(replace_without_exchange(), ::testing::ExitedWithCode(0), "");
}

/// Runs `action` in a child process and kills that at the n-th of its stops, which are before and
/// after each system call. Returns false where it ended before; nullopt without ptrace.
template <class F>
std::optional<bool> killed_at(int n, F&& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    std::raise(SIGSTOP);
    action();
    ::_exit(0);
  }
  int status = 0;
  for (int stop = 0; stop <= n; ++stop) {  // The first one is SIGSTOP.
    if (stop > 0) ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status)) continue;
    return WEXITSTATUS(status) == 77 ? std::nullopt : std::optional(false);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return true;
}

TEST(StagedDirectoryDeathTest, RefusesANameThatCouldNotBePutBack) {
  const test::TempDir folder;
  const fs::path place = folder / std::string(255, 'x');
  stage(place, "old");
  const auto replace_without_exchange = [&] {
    if (!forbid_exchange()) ::_exit(77);
    const std::string error = test::failure_of([&] { stage(place, "new"); });
    const bool good = test::get(place / "inner/x") == "old" && folder.names().size() == 1;
    std::fputs(error.c_str(), stderr);
    ::_exit(good ? 0 : 1);
  };
  EXPECT_EXIT(replace_without_exchange(), ::testing::ExitedWithCode(0),
              "cannot replace: the name has 255 bytes.* at most 200 bytes");
  stage(place, "new");
  EXPECT_EQ(test::get(place / "inner/x"), "new");
}

void expect_there_wherever_killed(const std::string& name, bool exchanges) {
  int kills = 0;
  for (std::optional<bool> killed = true; killed == true; ++kills) {
    const test::TempDir folder;
    stage(folder / name, "old");
    killed = killed_at(kills, [&] {
      if (!exchanges && !forbid_exchange()) ::_exit(1);
      try {
        stage(folder / name, "new");
      } catch (const Error&) {
        ::_exit(1);  // The name is too long to be set aside.
      }
    });
    if (!killed) GTEST_SKIP() << "needs ptrace(2)";
    remove_leftovers(folder.path());
    ASSERT_THAT(folder.names(), ElementsAre(name)) << "killed at stop " << kills;
    EXPECT_THAT(test::get(folder / name / "inner/x"), ::testing::AnyOf("old", "new"));
  }
  EXPECT_GT(kills, 20);
}

TEST(StagedDirectory, IsThereAgainWhereverItsProcessIsKilled) {
  for (const bool exchanges : {true, false}) {
    for (const size_t bytes : {5, 200, 255}) {
      expect_there_wherever_killed(std::string(bytes, 'x'), exchanges);
      if (IsSkipped()) return;
    }
  }
}

TEST(StagedDirectory, RefusesToReplaceAFile) {
  const test::TempDir folder;
  test::put(folder / "place", "mine");
  EXPECT_THAT(test::failure_of([&] { stage(folder / "place", "new"); }),
              AllOf(HasSubstr((folder / "place").string()), HasSubstr("not a folder")));
  EXPECT_EQ(test::get(folder / "place"), "mine");
  EXPECT_THAT(folder.names(), ElementsAre("place"));
}

TEST(StagedDirectory, FailsWhereItCannotBeMade) {
  const test::TempDir folder;
  test::put(folder / "file", "");
  EXPECT_THAT(test::failure_of([&] { StagedDirectory staged(folder / "file/place"); }),
              HasSubstr((folder / "file/place").string()));
  test::usage_of([] { StagedDirectory staged(""); });
}

TEST(StagedDirectory, CleansUpWhenTheDiskIsFull) {
  const test::TempDir folder;
  stage(folder / "place", "old");
  const std::string large(100'000, 'n');
  {
    const test::FileSizeLimit limit(65536);
    test::failure_of([&] {
      StagedDirectory staged(folder / "place");
      write_atomic(staged.path() / "small", "fits");
      write_atomic(staged.path() / "large", large);
      staged.commit();
    });
  }
  EXPECT_EQ(test::get(folder / "place/inner/x"), "old");
  EXPECT_THAT(folder.names(), ElementsAre("place"));
}

TEST(WithoutStaging, IsTheFinalPath) {
  const fs::path staged = unique_sibling("runs/step_5");
  EXPECT_EQ(without_staging(unique_sibling(staged / "model.safetensors")),
            "runs/step_5/model.safetensors");
  EXPECT_EQ(without_staging(unique_sibling("runs/.") / "loss.tsv"), "runs/loss.tsv");
  EXPECT_EQ(without_staging("./a/./b"), "./a/./b");
  EXPECT_EQ(without_staging("a/.b/c.moesaic.part"), "a/.b/c.moesaic.part");
  EXPECT_EQ(without_staging("a/.b.c.12-3.moesaic.part/d"), "a/b.c/d");
  for (const char* other : {".moesaic.part", "..moesaic.part", ".1-2.moesaic.part",
                            "..1-2.moesaic.part", ".a.1-.moesaic.part", ".a.-2.moesaic.part",
                            ".a.1-b.moesaic.part", ".a.1-2.moesaic.parts", ".a-b.2.moesaic.part"}) {
    EXPECT_EQ(without_staging(other), other);
  }
  // A name of any length is scanned once.
  const std::string long_name = "." + std::string(1'000'000, 'b') + ".1-2.moesaic.part";
  EXPECT_EQ(without_staging(long_name).string().size(), 1'000'000U);
  const std::string dots = ".a." + std::string(1'000'000, '.');
  EXPECT_EQ(without_staging(dots), dots);
}

TEST(StagedDirectory, AFullDiskIsToldByTheFinalPath) {
  const test::TempDir folder;
  StagedDirectory staged(folder / "final");
  const test::FileSizeLimit limit(100);
  const std::string error = test::failure_of(
      [&] { write_atomic(staged.path() / "weights", std::string_view(std::string(200, 'x'))); });
  EXPECT_EQ(error.find((folder / "final/weights").string() + ": cannot write"), 0U) << error;
}

}  // namespace
}  // namespace moesaic
