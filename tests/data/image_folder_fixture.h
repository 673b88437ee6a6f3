// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "data/jpeg_bytes.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/data/source.h"

namespace moesaic::test {

/// A folder of images: colours by class, sizes by number.
class ImageFolder : public ::testing::Test {
 protected:
  ImageFolder() : data_env_("MOESAIC_DATA", std::nullopt) {
    for (int i = 0; i < 6; ++i) {
      write_file(root() / "train" / "cat" / (std::to_string(i) + ".JPEG"),
                 jpeg_bytes(40 + 9 * i, 61, JpegKind::rgb, {200, 100, 50}));
      write_file(root() / "train" / "dog" / (std::to_string(i) + ".jpg"),
                 jpeg_bytes(33, 30 + 7 * i, JpegKind::noise, {}));
    }
    write_file(root() / "val" / "dog" / "a.jpeg", jpeg_bytes(50, 50, JpegKind::grey, {9}));
  }

  fs::path root() const { return folder_.path() / "images"; }
  std::shared_ptr<const Dataset> open(std::string_view split = "train") const {
    return open_dataset(root().string(), split);
  }
  std::shared_ptr<const Dataset> at_size(int64_t size) const {
    return preprocessed(open(), PreprocessConfig{.size = size});
  }
  /// Writes a small grey image below the folder.
  void add_image(const fs::path& name) const {
    write_file(root() / name, jpeg_bytes(8, 8, JpegKind::grey, {9}));
  }

  TempDir folder_;
  ScopedEnv data_env_;
};

/// What opening a split says.
inline std::string opening_says(const fs::path& root, std::string_view split = "train") {
  return said_by([&] { open_dataset(root.string(), split); });
}

}  // namespace moesaic::test
