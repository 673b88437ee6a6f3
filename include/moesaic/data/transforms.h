// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/base/random.h"
#include "moesaic/config/schema.h"
#include "moesaic/data/dataset.h"

namespace moesaic {

/// Random changes to training pictures.
struct AugmentConfig {
  bool flip = false;
  int64_t shift = 0;
};

template <class Fields>
void describe(Fields& f, AugmentConfig& c) {
  f("flip", c.flip, "mirror every second picture, chosen at random, left to right");
  f("shift", c.shift, "move each picture by up to so many pixels, both ways in both directions",
    at_least(0));
}

/// The random numbers that belong to a place in the order of an epoch.
CounterRng augment_rng(uint64_t seed, int64_t epoch, int64_t position);

/// Turns bytes [C, H, W] into normalised floats [C, H, W]: (byte / 255 - mean) / std, then flipped
/// with probability 1/2 and shifted by dy, dx drawn uniformly from [-shift, shift]. What a shift
/// uncovers becomes the value of a byte 0.
class ImageTransform {
 public:
  /// Throws Error (usage) unless mean and std have a value a channel, each std > 0, and 0 <= shift
  /// < height, width.
  explicit ImageTransform(const DatasetInfo& info, AugmentConfig augment = {});

  /// in: [C, H, W], out: [C, H, W]. Draws nothing from `rng` where augmentation is off.
  void operator()(const uint8_t* in, CounterRng& rng, float* out) const;

 private:
  struct Placement {
    bool flip;
    int64_t dy, dx;
  };
  void normalise(const uint8_t* in, float* out) const;
  void place(const uint8_t* in, Placement placement, float* out) const;

  int64_t channels_, height_, width_;
  AugmentConfig augment_;
  std::vector<std::array<float, 256>> value_;  ///< of each channel: what a byte becomes
};

}  // namespace moesaic
