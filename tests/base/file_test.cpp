// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "base/support.h"
#include "moesaic/base/text.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using WriteAtomic = test::InFolder;

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, ShowsTheBytes) {
  const test::TempDir folder;
  const std::string content("a\0b\xff", 4);
  test::put(folder / "x", content);
  EXPECT_EQ(text_of(MappedFile(folder / "x")), content);
}

TEST(MappedFile, AcceptsAnEmptyFile) {
  const test::TempDir folder;
  test::put(folder / "x", "");
  EXPECT_TRUE(MappedFile(folder / "x").bytes().empty());
}

TEST(MappedFile, MovesItsMapping) {
  const test::TempDir folder;
  test::put(folder / "x", "first");
  test::put(folder / "y", "second");
  MappedFile a(folder / "x");
  MappedFile b(std::move(a));
  EXPECT_EQ(text_of(b), "first");
  b = MappedFile(folder / "y");
  EXPECT_EQ(text_of(b), "second");
}

TEST(MappedFile, ShowsTheSameAfterRelease) {
  const test::TempDir folder;
  const std::string content = std::string(10'000, 'a') + std::string(10'000, 'b');
  test::put(folder / "x", content);
  const MappedFile file(folder / "x");
  EXPECT_EQ(text_of(file), content);
  file.release(file.bytes().subspan(5'000, 9'000));
  file.release({});
  EXPECT_EQ(text_of(file), content);
}

TEST(MappedFile, NamesWhatItCannotRead) {
  const test::TempDir folder;
  EXPECT_THAT(test::failure_of([&] { MappedFile file(folder / "none"); }),
              AllOf(HasSubstr((folder / "none").string()), HasSubstr("No such file")));
  EXPECT_THAT(test::failure_of([&] { MappedFile file(folder.path()); }),
              AllOf(HasSubstr(folder.path().string()), HasSubstr("not a regular file")));
}

TEST(ReadText, ReadsFilesOfAnySize) {
  const test::TempDir folder;
  const std::string large(200'000, 'q');
  test::put(folder / "x", large);
  EXPECT_EQ(read_text(folder / "x"), large);
  EXPECT_EQ(read_text("/dev/null"), "");
}

TEST(ReadText, NamesWhatItCannotRead) {
  const test::TempDir folder;
  EXPECT_THAT(test::failure_of([&] { read_text(folder / "none"); }),
              AllOf(HasSubstr((folder / "none").string()), HasSubstr("No such file")));
  EXPECT_THAT(test::failure_of([&] { read_text(folder.path()); }), HasSubstr("Is a directory"));
}

TEST(ReadTextWithALimit, ReadsRegularFilesUpToIt) {
  const test::TempDir folder;
  const std::string text(100'000, 'q');
  test::put(folder / "x", text);
  EXPECT_EQ(read_text(folder / "x", 100'000, "a recipe"), text);
  EXPECT_EQ(test::failure_of([&] { read_text(folder / "x", 99'999, "a recipe"); }),
            (folder / "x").string() + ": 100000 bytes are more than a recipe has (at most 99999)");
  EXPECT_NE(read_text("/proc/self/status", 100'000, "a recipe"), "");
  EXPECT_THAT(test::failure_of([&] { read_text("/proc/self/status", 10, "a recipe"); }),
              HasSubstr("bytes are more than a recipe has"));
}

TEST(ReadTextWithALimit, WaitsForNoPipeAndReadsNoDevice) {
  const test::TempDir folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const fs::path& path : {folder / "pipe", fs::path("/dev/zero"), folder.path()}) {
    EXPECT_EQ(test::failure_of([&] { read_text(path, 100, "a recipe"); }),
              path.string() + ": not a regular file");
  }
}

TEST(UniqueSibling, IsFreeHiddenAndBeside) {
  const fs::path a = unique_sibling("runs/step_1");
  const fs::path b = unique_sibling("runs/step_1");
  EXPECT_NE(a, b);
  EXPECT_EQ(a.parent_path(), "runs");
  EXPECT_TRUE(a.filename().string().starts_with(".step_1."));
  EXPECT_TRUE(a.filename().string().ends_with(kStagingSuffix));
  EXPECT_EQ(unique_sibling("runs/step_1/").parent_path(), "runs");
}

TEST(UniqueSibling, IsShortEnoughForFilesOfTheLongestName) {
  const test::TempDir folder;
  std::string umlauts = "x";
  while (umlauts.size() < 255) umlauts += "\xC3\xA4";
  for (const std::string& name : {std::string(255, 'x'), umlauts}) {
    write_atomic(folder / name, "whole");
    EXPECT_EQ(test::get(folder / name), "whole");
    EXPECT_EQ(find_invalid_utf8(unique_sibling(folder / name).string()), std::nullopt);
    test::put(unique_sibling(folder / name), "half");
  }
  remove_leftovers(folder.path());
  EXPECT_THAT(folder.names(), ::testing::UnorderedElementsAre(std::string(255, 'x'), umlauts));
}

TEST_F(WriteAtomic, CreatesAndReplaces) {
  write_atomic(folder / "x", "one");
  EXPECT_EQ(test::get(folder / "x"), "one");
  const std::array<std::byte, 2> bytes = {std::byte{0}, std::byte{255}};
  write_atomic(folder / "x", bytes);
  EXPECT_EQ(test::get(folder / "x"), std::string("\0\xff", 2));
  EXPECT_THAT(folder.names(), ElementsAre("x"));
}

TEST_F(WriteAtomic, WorksInTheCurrentFolder) {
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  write_atomic("x", "here");
  fs::current_path(before);
  EXPECT_EQ(test::get(folder / "x"), "here");
}

TEST_F(WriteAtomic, FollowsALink) {
  test::put(folder / "target", "old");
  fs::create_symlink("target", folder / "link");
  write_atomic(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(test::get(folder / "target"), "new");
}

TEST_F(WriteAtomic, LeavesDevicesAndFoldersAlone) {
  EXPECT_THAT(test::failure_of([&] { write_atomic(folder.path(), "x"); }),
              AllOf(HasSubstr(folder.path().string()), HasSubstr("not a regular file")));
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  test::failure_of([&] { write_atomic(folder / "fifo", "x"); });
  EXPECT_TRUE(fs::is_fifo(folder / "fifo"));
}

TEST_F(WriteAtomic, NamesThePlaceAndNotItsStagingName) {
  const fs::path place = folder / "none/x";
  EXPECT_THAT(test::failure_of([&] { write_atomic(place, "x"); }),
              AllOf(HasSubstr(place.string() + ": cannot create"), HasSubstr("No such file")));
}

TEST_F(WriteAtomic, KeepsTheOldFileWhenTheDiskIsFull) {
  test::put(folder / "x", "old");
  const std::string large(100'000, 'n');
  {
    const test::FileSizeLimit limit(65536);  // the first part fits: a short write
    EXPECT_THAT(test::failure_of([&] { write_atomic(folder / "x", large); }),
                AllOf(HasSubstr((folder / "x").string()), HasSubstr("File too large")));
  }
  EXPECT_EQ(test::get(folder / "x"), "old");
  EXPECT_THAT(folder.names(), ElementsAre("x"));
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  const test::TempDir folder;
  {
    AtomicFile file(folder / "x");
    file.write("half");
    EXPECT_FALSE(fs::exists(folder / "x"));
  }
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(AtomicFile, JoinsItsPieces) {
  const test::TempDir folder;
  AtomicFile file(folder / "x");
  file.write("one ");
  file.write("two");
  file.commit();
  EXPECT_EQ(test::get(folder / "x"), "one two");
  test::usage_of([&] { file.write("three"); });
  test::usage_of([&] { file.commit(); });
}

TEST(AtomicFile, IsWithdrawnOnlyWhereItCameIntoPlace) {
  const test::TempDir folder;
  test::put(folder / "x", "old");
  {
    AtomicFile file(folder / "x");
    file.write("new");
    file.sync();
    file.rollback();
  }
  EXPECT_EQ(test::get(folder / "x"), "old");
  AtomicFile file(folder / "x");
  file.commit();
  test::usage_of([&] { file.sync(); });
  file.rollback();
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(MappedFile, DoesNotWaitForAPipe) {
  const test::TempDir folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(test::failure_of([&] { MappedFile file(folder / "pipe"); }),
              HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace moesaic
