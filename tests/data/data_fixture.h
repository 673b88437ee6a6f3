// SPDX-License-Identifier: Apache-2.0
// Small datasets on disk: a folder of its own a test, the environment put back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/support.h"
#include "formats/bytes.h"
#include "moesaic/data/source.h"

namespace moesaic::test {

inline std::vector<int64_t> labels_of(const Dataset& dataset) {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < dataset.size(); ++i) labels.push_back(dataset.label(i));
  return labels;
}

inline Bytes image_of(const Dataset& dataset, int64_t index) {
  Bytes pixels(static_cast<size_t>(dataset.image_size()));
  dataset.image(index, pixels.data());
  return pixels;
}

/// An image as it is read whole: smaller where its file allows it and so many pixels stay each way.
inline Bitmap whole_image(const Dataset& dataset, int64_t index, int64_t min_side) {
  Bitmap bitmap;
  const auto whole = [](int64_t height, int64_t width) { return Rectangle{0, 0, height, width}; };
  dataset.decode(index, whole, {min_side}, bitmap);
  return bitmap;
}

/// Every file of a dataset is what is described.
inline void expect_verified(const std::string& name) {
  for (const FileVerification& file : DatasetSource(name).verify()) {
    EXPECT_TRUE(file.ok()) << file.name << ": " << file.problem;
  }
}

/// A resource root with the dataset "tiny": 4 x 5 images, 12 to train and 5 to test, classes cat,
/// dog, fox, hen.
class TinyHome {
 public:
  static constexpr uint32_t kHeight = 4, kWidth = 5, kTrain = 12, kTest = 5;

  TinyHome() : home_env_("MOESAIC_HOME", root()), data_env_("MOESAIC_DATA", std::nullopt) {
    files["train-images"] = idx_bytes({kTrain, kHeight, kWidth}, pixels(kTrain, 3));
    files["train-labels"] = idx_bytes({kTrain}, {0, 1, 2, 3, 0, 1, 2, 3, 3, 2, 1, 0});
    files["test-images"] = idx_bytes({kTest, kHeight, kWidth}, pixels(kTest, 91));
    files["test-labels"] = idx_bytes({kTest}, {3, 1, 0, 2, 2});
    describe();
  }

  static Bytes pixels(uint32_t count, uint32_t start) {
    Bytes bytes(static_cast<size_t>(count) * kHeight * kWidth);
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<uint8_t>(start + 37 * i + i / 7);
    return bytes;
  }

  std::string root() const { return folder_.path().string(); }
  fs::path cache() const { return folder_.path() / "datasets" / "cache" / "tiny"; }

  void write_description(const std::string& name, const std::string& text) const {
    write_file(folder_.path() / "datasets" / (name + ".json"), text);
  }

  /// Writes datasets/tiny.json for what `files` and `urls` hold now.
  void describe() const {
    std::string text = R"({"name": "tiny", "description": "a test", "format": "idx",
      "classes": ["cat", "dog", "fox", "hen"], "mean": [0.25], "std": [0.5],
      "debian_package": "dataset-tiny", "paths": ["elsewhere"], "urls": [)";
    for (size_t i = 0; i < urls.size(); ++i) text += (i > 0 ? ", \"" : "\"") + urls[i] + "\"";
    text += "], \"files\": {";
    for (const auto& [name, bytes] : files) {
      std::string role = name;
      role[role.find('-')] = '_';
      if (role != "test_images") text += ", ";
      text += "\"" + role + "\": {\"name\": \"" + name +
              "\", \"size\": " + std::to_string(bytes.size()) + ", \"sha256\": \"" +
              hash_of(bytes) + "\"}";
    }
    write_description("tiny", text + "}}\n");
  }

  void write_files(const fs::path& folder, bool packed = false) const {
    for (const auto& [name, bytes] : files) {
      write_file(folder / (packed ? name + ".gz" : name), packed ? gzip_bytes(bytes) : bytes);
    }
  }

  std::map<std::string, Bytes> files;  ///< content by name, sorted: test-images comes first
  std::vector<std::string> urls;

 private:
  TempDir folder_;
  ScopedEnv home_env_, data_env_;
};

}  // namespace moesaic::test
