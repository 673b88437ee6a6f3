// SPDX-License-Identifier: Apache-2.0
// Packs the images of a dataset into shards, which data of format `shards` are made of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/base/filesystem.h"

namespace moesaic {

/// How pack_dataset() writes shards.
struct PackOptions {
  int64_t num_shards = 1;  ///< Shards of the largest split; others have as many images per shard.
  std::string split;       ///< The only one to pack; empty means all that are here.
  int64_t size = 0;        ///< Pixels of the shorter side of larger images; 0 leaves them alone.
  int64_t quality = 95;    ///< JPEG quality of resized images, 1 to 100.
  uint64_t seed = 0;       ///< Seed of the images' order.
  bool show_progress = true;  ///< Draws progress bars on standard error.
};

/// What was packed of a split.
struct PackedSplit {
  std::string split;
  int64_t num_shards = 0, num_images = 0, bytes = 0;
  int64_t num_skipped = 0;  ///< Images that cannot be read.
};

/// What pack_dataset() wrote.
struct PackResult {
  fs::path description;  ///< OUT/NAME.json, which opens the packed dataset.
  std::vector<PackedSplit> splits;
};

/// Writes the folder `out`, whose last part names the packed dataset: its shards
/// `<split>-<number>.tar` and its description. Images are in a random order of the seed, shards
/// equally long. Files are copied as they are, unless they are to become smaller; images that are
/// no files become PNG. An image that cannot be read is named and left out; more than 1 %, and more
/// than one, are an Error. The folder appears as a whole or not at all. Throws Error: usage for a
/// name or split that is unknown, inputs that are no images with classes, more shards than images,
/// an `out` that exists; failure for what cannot be read or written. Throws Stopped
/// after a signal, having written nothing.
PackResult pack_dataset(std::string_view name, const fs::path& out, const PackOptions& options);

}  // namespace moesaic
