// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/source.h"

#include <string>

#include "base/support.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

TEST(OutsideImages, IsWhereAnythingIsWritten) {
  const test::TempDir folder;
  const fs::path root = folder / "images";
  for (const char* split : {"train/cat", "train/dog", "val/dog"})
    fs::create_directories(root / split);
  fs::create_directory_symlink(root / "train/cat", folder / "cat");
  const fs::path half = folder / "half.json";
  test::put(half, R"({"name": "half", "base": ")" + root.string() +
                      R"(", "num_first_images": {"train": 2}})");
  for (const std::string& data : {root.string(), half.string()}) {
    for (const char* out : {"images/train/run", "images/train/cat/a/figure.png", "images/val/dog/b",
                            "images/val/../train/run", "cat/figure.png"}) {
      EXPECT_THAT(test::usage_of([&] { check_outside_images(folder / out, data); }),
                  AllOf(HasSubstr(out), HasSubstr("images of dataset '" + data + "'")));
    }
    for (const char* out : {"images/run", "run", "images/trains/run"}) {
      EXPECT_NO_THROW(check_outside_images(folder / out, data)) << out;
    }
  }
  EXPECT_NO_THROW(check_outside_images(root / "train/run", "no such data"));
}

}  // namespace
}  // namespace moesaic
