// SPDX-License-Identifier: Apache-2.0
// Reading the images of batches, where some may be damaged.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "moesaic/data/dataset.h"
#include "moesaic/data/transforms.h"

namespace moesaic {

/// Returns how many images of a dataset may be damaged: 1 %, and one of a small one.
int64_t max_damaged(int64_t size);

/// Set of the damaged images of a dataset, of all threads.
class DamagedImages {
 public:
  explicit DamagedImages(const Dataset& dataset);

  /// Returns whether an image is damaged. Throws, like add(), if too many are.
  bool contains(int64_t index);
  void add(int64_t index, const ImageError& error);

 private:
  void check() const;
  /// Warns where the image was the last readable one of its class.
  void check_class(int64_t index);
  /// Returns " (all of class 'cat')" where that is so.
  std::string of_one_class() const;

  const Dataset& dataset_;
  int64_t size_, max_;
  std::mutex mutex_;
  std::set<int64_t> indices_;
  std::vector<int64_t> sound_;  ///< Number of images by class that are not damaged, once needed.
  std::string last_;
};

/// Makes the images of a batch; each thread needs its own object.
class ImageReader {
 public:
  ImageReader(const Dataset& dataset, const AugmentConfig& augment, const ImageTransform& transform,
              DamagedImages& damaged)
      : dataset_(dataset),
        augment_(augment),
        transform_(transform),
        damaged_(damaged),
        bytes_(static_cast<size_t>(dataset.image_size())) {}

  /// Writes the values of image `index`, or of the next readable one, to `out`. Returns the index
  /// of that image. Random choices come from `rng`.
  template <class Value>
  int64_t make(int64_t index, const CounterRng& rng, Value* out) {
    while (true) {
      CounterRng random = rng;
      if (try_read(index, random)) {
        transform_(bytes_.data(), random, out);
        return index;
      }
      index = dataset_.endless() ? index + 1 : (index + 1) % dataset_.size();
    }
  }

 private:
  bool try_read(int64_t index, CounterRng& rng);

  const Dataset& dataset_;
  const AugmentConfig& augment_;
  const ImageTransform& transform_;
  DamagedImages& damaged_;
  std::vector<uint8_t> bytes_;
};

}  // namespace moesaic
