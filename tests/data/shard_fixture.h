// SPDX-License-Identifier: Apache-2.0
// Shards made in memory, and a dataset of them in a folder of its own.
#pragma once

#include <string>
#include <vector>

#include "data/data_fixture.h"
#include "data/jpeg_bytes.h"
#include "data/tar_bytes.h"

namespace moesaic::test {

inline Bytes text_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

/// A JPEG whose brightness tells its number: about 2 * number + 10.
inline Bytes numbered_jpeg(int64_t number, int height = 16, int width = 16) {
  const auto bright = static_cast<uint8_t>(2 * number + 10);
  return jpeg_bytes(height, width, JpegKind::rgb, {bright, bright, bright});
}

/// Images `first` to `first + count - 1` with labels of two classes in turn.
inline std::vector<TarEntry> samples(int64_t first, int64_t count) {
  std::vector<TarEntry> entries;
  for (int64_t i = first; i < first + count; ++i) {
    const std::string name = std::to_string(1000 + i);
    entries.push_back({name + ".jpg", numbered_jpeg(i)});
    entries.push_back({name + ".cls", text_bytes(std::to_string(i % 2))});
  }
  return entries;
}

/// The dataset "pets" of classes cat and dog: a folder with pets.json.
class ShardHome {
 public:
  ShardHome() : data_env_("MOESAIC_DATA", data().string()), proxy_("no_proxy", "127.0.0.1") {}

  fs::path root() const { return folder_.path() / "pets"; }
  fs::path data() const { return folder_.path() / "data"; }
  fs::path path(const std::string& name) const { return root() / name; }
  std::string name() const { return path("pets.json").string(); }

  Bytes write(const std::string& shard, const std::vector<TarEntry>& entries) const {
    const Bytes bytes = tar_bytes(entries);
    write_file(path(shard), bytes);
    return bytes;
  }
  /// `shards` is the setting's JSON, `rest` further settings.
  void describe(const std::string& shards, const std::string& rest = R"("paths": ["./"])") const {
    write_file(path("pets.json"),
               R"({"name": "pets", "format": "shards", "classes": ["cat", "dog"],
                   "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "shards": )" +
                   shards + ", " + rest + "}");
  }
  std::shared_ptr<const Dataset> open(std::string_view split = "train") const {
    return open_dataset(name(), split);
  }

  /// The number of the image at an index.
  static int64_t number_at(const Dataset& data, int64_t index) {
    return (whole_image(data, index, 1000).pixels.at(0) - 10 + 1) / 2;
  }

 private:
  TempDir folder_;
  ScopedEnv data_env_, proxy_;
};

}  // namespace moesaic::test
