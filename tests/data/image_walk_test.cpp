// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/image_walk.h"

#include <sys/stat.h>

#include "data/data_fixture.h"
#include "support/faults.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

class ImageWalk : public ::testing::Test {
 protected:
  void put(const std::string& name) const { write_file(root() / name, std::string("x")); }
  test::fs::path root() const { return folder_ / "photos"; }
  /// Names of the files that are found, relative to the folder.
  std::vector<std::string> found() const {
    std::vector<std::string> names;
    for (const test::fs::path& file : image_files_in(root()).files) {
      names.push_back(file.lexically_relative(root()).string());
    }
    return names;
  }

  test::TempDir folder_;
};

TEST_F(ImageWalk, NamesTellImagesInAnyCase) {
  for (const char* name : {"a.jpg", "a.JPEG", "a.jpe", "a.JFIF", "b/a.Png", "a.webp"}) {
    EXPECT_TRUE(has_image_name(name)) << name;
  }
  for (const char* name : {"a", "a.", "jpg", ".jpg", "a.jpg.txt", "a.gif"}) {
    EXPECT_FALSE(has_image_name(name)) << name;
  }
}

TEST_F(ImageWalk, FollowsLinksToFoldersOnceAndInNoCircle) {
  put("b/1.png");
  put("b/deep/2.jfif");
  write_file(folder_ / "elsewhere/3.jpg", std::string("x"));
  test::fs::create_directory_symlink("b", root() / "a");  // Before b in the order of names.
  test::fs::create_directory_symlink(folder_ / "elsewhere", root() / "b" / "linked");
  test::fs::create_directory_symlink(folder_ / "elsewhere", root() / "once more");
  test::fs::create_directory_symlink("..", root() / "b" / "up");
  test::fs::create_directory_symlink(folder_.path(), root() / "around");
  EXPECT_THAT(found(), ElementsAre("b/1.png", "b/deep/2.jfif", "once more/3.jpg"));
  EXPECT_EQ(image_files_in(root()).skipped.text(),
            "4 left out: 4 folders that are read already ('a', 'around', 'b/linked', 'b/up')");
}

TEST_F(ImageWalk, NamesAndCountsWhatIsLeftOut) {
  put("1.png");
  EXPECT_EQ(image_files_in(root()).skipped.text(), "");
  put("x/2.webp2");
  put("notes.txt");
  put(".cache/3.png");
  put("._1.png");
  for (const char* name : {".DS_Store", "Thumbs.db", "x/desktop.ini"}) put(name);
  put("__MACOSX/4.png");
  ASSERT_EQ(::mkfifo((root() / "pipe.png").c_str(), 0600), 0);
  test::fs::create_symlink("/nonexistent.jpg", root() / "gone.jpg");
  test::fs::create_symlink("self.jpg", root() / "self.jpg");
  EXPECT_THAT(found(), ElementsAre("1.png"));
  const std::string said = image_files_in(root()).skipped.text();
  for (const char* part :
       {"8 left out: ", "2 files not called .jpg, ", " ('notes.txt', 'x/2.webp2')",
        "2 links to nothing ('gone.jpg', 'self.jpg')", "1 folder that a system made ('__MACOSX')",
        "2 hidden ('._1.png', '.cache')", "1 neither file nor folder ('pipe.png')"}) {
    EXPECT_THAT(said, HasSubstr(part));
  }
}

TEST_F(ImageWalk, WhatCannotBeExaminedIsAnErrorAndNotLeftOut) {
  NEEDS_FAULTS();
  put("1.png");
  put("2.png");
  test::fs::create_symlink("1.png", root() / "3.png");
  const auto list = [&] {
    if (list_images(root()).images.size() != 3) fail("cut short");
  };
  const auto says = [](const char* text) {
    return [text](const test::Outcome& outcome) {
      if (!outcome.fired) return;
      EXPECT_THAT(outcome.error, HasSubstr(text));
    };
  };
  const auto nothing = [] {};
  EXPECT_EQ(test::for_every_call({"stat", "ESTALE"}, root(), nothing, list,
                                 says("3.png: cannot be examined: Stale file handle")),
            1);
  EXPECT_GT(test::for_every_call({"list", "EIO"}, root(), nothing, list,
                                 says("photos: cannot be listed: Input/output error")),
            3);
}

}  // namespace
}  // namespace moesaic
