// SPDX-License-Identifier: Apache-2.0
// Reading the images of batches, where some may be damaged.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/data/dataset.h"
#include "moesaic/data/transforms.h"

namespace moesaic {

/// Returns how many images of a dataset may be damaged: 1 %, and one of a small one.
int64_t max_damaged(int64_t size);

/// The damaged images of a dataset, of all threads.
class DamagedImages {
 public:
  /// With `shared` add() leaves it to count() to warn.
  DamagedImages(const Dataset& dataset, bool shared);

  /// Returns what is wrong with an image, "" where that was said already; nothing for one that is
  /// not known as damaged. Throws, like add() and count(), if too many are.
  std::optional<std::string> find(int64_t index);
  /// Adds an image that this process met; returns what find() does.
  std::string add(int64_t index, const ImageError& error);
  /// Adds an image that any process met, or that is known from before; `warn`: says so.
  void count(int64_t index, const std::string& what, bool warn);

 private:
  void check() const;
  /// Takes the image from the readable ones of its class; with `warn` says what is wrong with it,
  /// and where it was the last one.
  void tell(int64_t index, const std::string& what, bool warn);
  /// Returns " (all of class 'cat')" where that is so.
  std::string of_one_class() const;

  const Dataset& dataset_;
  bool shared_;
  int64_t size_, max_;
  std::mutex mutex_;
  std::map<int64_t, std::string> known_;  ///< What is wrong with each.
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
  /// of that image; those that it replaces come into replaced(). Random choices come from `rng`.
  template <class Value>
  int64_t make(int64_t index, const CounterRng& rng, Value* out) {
    while (true) {
      CounterRng random = rng;
      const std::optional<std::string> problem = try_read(index, random);
      if (!problem) {
        transform_(bytes_.data(), random, out);
        return index;
      }
      replaced_[index] = *problem;
      index = dataset_.endless() ? index + 1 : (index + 1) % dataset_.size();
    }
  }

  const std::map<int64_t, std::string>& replaced() const { return replaced_; }

 private:
  /// Returns what is wrong with the image, or nothing.
  std::optional<std::string> try_read(int64_t index, CounterRng& rng);

  const Dataset& dataset_;
  const AugmentConfig& augment_;
  const ImageTransform& transform_;
  DamagedImages& damaged_;
  std::vector<uint8_t> bytes_;
  std::map<int64_t, std::string> replaced_;
};

}  // namespace moesaic
