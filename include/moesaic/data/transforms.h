// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moesaic/base/random.h"
#include "moesaic/config/schema.h"
#include "moesaic/data/blur.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/rand_augment.h"

namespace moesaic {

/// A random part of an image, resized to the whole ("Inception" crop, random resized crop).
struct CropConfig {
  double min_area = 0.05, max_area = 1.0;
  double min_aspect = 0.75, max_aspect = 1.33;
};

template <class Fields>
void describe(Fields& f, CropConfig& c) {
  f("min_area", c.min_area, "min fraction of the image's area", above(0.0), at_most(1.0));
  f("max_area", c.max_area, "max fraction of the image's area", above(0.0), at_most(1.0));
  f("min_aspect", c.min_aspect, "min width by height", between(0.01, 100.0));
  f("max_aspect", c.max_aspect, "largest width by height", between(0.01, 100.0));
}

std::string config_problem(const CropConfig& config);

/// Augmentation of training images, in V-MoE's order: crop, flip, rand_augment; then blur, shift
/// and mixup.
struct AugmentConfig {
  bool flip = false;
  int64_t shift = 0;
  std::optional<CropConfig> crop;
  std::optional<RandAugmentConfig> rand_augment;
  std::optional<BlurConfig> blur;
  double mixup = 0.0;
};

template <class Fields>
void describe(Fields& f, AugmentConfig& c) {
  f("flip", c.flip, "mirror every second image, chosen at random, left to right", common);
  f("shift", c.shift, "move each image by up to so many pixels, both ways in both directions",
    at_least(0));
  f("crop", c.crop, "show a random part of each image, resized; {} takes the defaults", common);
  f("rand_augment", c.rand_augment, "RandAugment; {} is V-MoE's light1");
  f("blur", c.blur, "Gaussian blur of random strength; {} is that of CIFAR-10-Rotate");
  f("mixup", c.mixup, "concentration a of Beta(a, a), by which images are mixed; 0: they are not",
    between(0.0, 100.0));
}

/// Draws a part of an image as TensorFlow's sample_distorted_bounding_box does, which V-MoE was
/// trained with: its aspect ratio is uniform in its range and its height is uniform among those
/// that keep the area in its range and the part within the image; every position is equally likely,
/// except that a part smaller than the image never touches the lower (or right) edge. After 100
/// failed tries it is the whole image.
Rectangle random_part(const CropConfig& config, int64_t height, int64_t width, CounterRng& rng);

/// Returns the random-number generator of a position in the order of an epoch.
CounterRng augment_rng(uint64_t seed, int64_t epoch, int64_t position);

/// Turns bytes [C, H, W] into normalised floats [C, H, W]: flipped with probability 1/2, changed by
/// rand_augment(), blurred by a sigma drawn uniformly from its range, shifted by dy, dx drawn
/// uniformly from [-shift, shift], each where it is on; then (byte / 255 - mean) / std. What a
/// shift uncovers becomes the value of a byte 0.
class ImageTransform {
 public:
  /// Throws Error (usage) unless mean and std have a value a channel, each std > 0, 0 <= shift
  /// < height, width, and images are larger than half the blur's kernel.
  explicit ImageTransform(const DatasetInfo& info, AugmentConfig augment = {});

  /// Transforms `in` [C, H, W], which rand_augment and blur change in place, to `out` [C, H, W].
  /// Draws nothing from `rng` where augmentation is off.
  void operator()(uint8_t* in, CounterRng& rng, float* out) const;
  /// The same without the last step, for normalised().
  void operator()(uint8_t* in, CounterRng& rng, uint8_t* out) const;

 private:
  /// Value of each byte, by channel.
  template <class Value>
  using Tables = std::vector<std::array<Value, 256>>;

  struct Placement {
    bool flip;
    int64_t dy, dx;
  };
  void flip(uint8_t* in) const;
  template <class Value>
  void transform(uint8_t* in, CounterRng& rng, const Tables<Value>& values, Value* out) const;
  template <class Value>
  void look_up(const uint8_t* in, const Tables<Value>& values, Value* out) const;
  template <class Value>
  void place(const uint8_t* in, Placement placement, const Tables<Value>& values, Value* out) const;

  int64_t channels_, height_, width_;
  AugmentConfig augment_;
  Tables<float> value_;
};

/// Returns (byte / 255 - mean) / std [B, C, H, W] float32 of bytes_BCHW uint8, the very bits of
/// ImageTransform, for `mean_C` and `std_C` float32 on the same device.
at::Tensor normalised(const at::Tensor& bytes_BCHW, const at::Tensor& mean_C,
                      const at::Tensor& std_C);

}  // namespace moesaic
