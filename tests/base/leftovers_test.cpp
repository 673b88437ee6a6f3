// SPDX-License-Identifier: Apache-2.0

#include <memory>
#include <utility>

#include "base/holding_process.h"
#include "base/support.h"
#include "moesaic/base/file.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using RemoveLeftovers = test::InFolder;

TEST_F(RemoveLeftovers, TakesOnlyStagingNames) {
  fs::create_directory(unique_sibling(folder / "step_1"));
  test::put(unique_sibling(folder / "a.json"), "half");
  const std::vector<std::string> others = {
      ".1-2.moesaic.part",  ".film.moesaic.part",    ".lock",
      ".x.1-.moesaic.part", ".x.a-2.moesaic.part",   ".x.1-2.moesaic.part2",
      "x.1-2.moesaic.part", ".holiday.2024-12.part", ".holiday.2024-12.old"};
  for (const std::string& name : others) test::put(folder / name, "mine");
  remove_leftovers(folder.path());
  EXPECT_THAT(folder.names(), ::testing::UnorderedElementsAreArray(others));
  EXPECT_THAT(test::failure_of([&] { remove_leftovers(folder / "none"); }), HasSubstr("none"));
}

TEST_F(RemoveLeftovers, LeavesWhatALivingProcessWrites) {
  test::HoldingProcess other([&] {
    return std::pair(std::make_unique<AtomicFile>(folder / "export.safetensors"),
                     std::make_unique<StagedDirectory>(folder / "packed"));
  });
  const std::vector<std::string> written = folder.names();
  EXPECT_EQ(written.size(), 2U);
  remove_leftovers(folder.path());
  EXPECT_EQ(folder.names(), written);
  other.kill();
  remove_leftovers(folder.path());
  EXPECT_THAT(folder.names(), ElementsAre());
}

TEST_F(RemoveLeftovers, LeavesWhatItsOwnProcessWrites) {
  AtomicFile file(folder / "export.safetensors");
  StagedDirectory staged(folder / "packed");
  remove_leftovers(folder.path());
  file.commit();
  staged.commit();
  EXPECT_THAT(folder.names(), ElementsAre("export.safetensors", "packed"));
}

TEST_F(RemoveLeftovers, PutsBackWhatHasNoSuccessor) {
  for (const char* name :
       {".best.7-0.moesaic.part", ".best.7-1.moesaic.old", ".last.7-2.moesaic.old", "last"}) {
    fs::create_directory(folder / name);
    test::put(folder / (std::string(name) + "/x"), name);
  }
  remove_leftovers(folder.path());
  EXPECT_THAT(folder.names(), ElementsAre("best", "last"));
  EXPECT_EQ(test::get(folder / "best/x"), ".best.7-1.moesaic.old");
  EXPECT_EQ(test::get(folder / "last/x"), "last");
}

TEST(SetAside, TakesANameThatIsFree) {
  const test::TempDir folder;
  for (const char* kept : {"a.damaged", "a.damaged-2", "a.damaged-3"}) {
    fs::create_directory(folder / "a");
    EXPECT_EQ(set_aside(folder / "a", "damaged"), folder / kept);
  }
  fs::create_symlink("nowhere", folder / "b.old");
  test::put(folder / "b", "mine");
  EXPECT_EQ(set_aside(folder / "b", "old"), folder / "b.old-2");
  EXPECT_EQ(test::get(folder / "b.old-2"), "mine");
  EXPECT_THAT(test::failure_of([&] { set_aside(folder / "none", "old"); }), HasSubstr("none"));
  for (const char* name : {"best.old", "best.old-2", "best-3.old-41"}) {
    EXPECT_TRUE(is_set_aside(folder / name, "old")) << name;
  }
  for (const char* name : {"old", "best", "best.older", "best.old-", "best.old-2x", "best-2"}) {
    EXPECT_FALSE(is_set_aside(folder / name, "old")) << name;
  }
}

TEST(CreateFolders, MakesAllThatAreMissing) {
  const test::TempDir folder;
  std::error_code error;
  create_folders(folder / "a/b/c/", error);
  EXPECT_FALSE(error);
  EXPECT_TRUE(fs::is_directory(folder / "a/b/c"));
  create_folders(folder / "a/b/c", error);
  create_folders("", error);
  EXPECT_FALSE(error);
  test::put(folder / "file", "");
  create_folders(folder / "file/x", error);
  EXPECT_TRUE(error);
}

}  // namespace
}  // namespace moesaic
