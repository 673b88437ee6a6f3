// SPDX-License-Identifier: Apache-2.0
// Augmentation of training images: crop, flip, RandAugment (Cubuk, Zoph, Shlens and Le,
// arXiv:1909.13719), blur, shift and mixup (Zhang, Cisse, Dauphin and Lopez-Paz, arXiv:1710.09412),
// as the pipelines have them that V-MoE was trained with.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "moesaic/base/random.h"
#include "moesaic/config/schema.h"
#include "moesaic/data/dataset.h"

namespace moesaic {

/// Settings of RandAugment (Cubuk et al., arXiv:1909.13719).
struct RandAugmentConfig {
  int64_t num_layers = 2;
  double magnitude = 10.0;
};

void describe(auto& f, RandAugmentConfig& c) {
  f("num_layers", c.num_layers,
    "number of consecutive operations per image, each drawn from sixteen", between(0, 16),
    renamed_from("layers"));
  f("magnitude", c.magnitude,
    "strength of the operations; V-MoE: light0 0, light1 10, medium 15, strong 20",
    between(0.0, 20.0));
}

/// Bytes of an image, [channels, height, width], one or three channels, changed in place.
struct Planes {
  int64_t channels, height, width;
  uint8_t* pixels;
  /// Returns the number of pixels of a channel.
  int64_t plane_size() const { return height * width; }
};

/// Applies `layers` operations, each chosen uniformly. With m the magnitude: rotate by +-3 m
/// degrees, shear_x and shear_y by +-0.03 m, translate_x and translate_y by +-10 m pixels (these
/// five with the nearest pixel, 128 outside); color, contrast, brightness and sharpness by a factor
/// of 0.18 m + 0.1; posterize to int(0.4 m) bits (0 counts as 1), solarize from int(25.6 m) mod 256
/// on, solarize_add int(11 m) below 128; cutout of a square of half side int(4 m) around a random
/// pixel; auto_contrast, equalize and invert. As in those pipelines, contrast blends with a grey of
/// min(255, pixels / 256) for any image, and solarize at magnitudes 10 and 20 inverts, since 256 is
/// 0 as a byte.
void rand_augment(const RandAugmentConfig& config, CounterRng& rng, const Planes& image);

/// One of these operations; `fraction` is the magnitude divided by 10, and `rng` draws the sign or,
/// for cutout, row and column of the centre.
struct RandAugmentOp {
  std::string_view name;
  void (*apply)(const Planes& image, double fraction, CounterRng& rng);
};

/// Returns the operations in the order in which they are drawn.
std::span<const RandAugmentOp> rand_augment_ops();

/// Gaussian blur of random strength.
struct BlurConfig {
  int64_t width = 3, height = 7;
  double min_sigma = 1.1, max_sigma = 2.2;
};

void describe(auto& f, BlurConfig& c) {
  f("width", c.width, "kernel width in pixels, an odd number", between(1, 255));
  f("height", c.height, "kernel height in pixels, an odd number", between(1, 255));
  f("min_sigma", c.min_sigma, "smallest standard deviation, in pixels", between(0.01, 1000.0));
  f("max_sigma", c.max_sigma, "largest standard deviation, in pixels", between(0.01, 1000.0));
}

std::string config_problem(const BlurConfig& config);

/// Blurs an image in place: each byte becomes the mean of the `config.height` x `config.width`
/// bytes around it, weighted in proportion to exp(-(dx^2 + dy^2) / (2 sigma^2)) and rounded to
/// nearest, ties to even. The image is mirrored at its borders without repeating them and has to be
/// larger than half the kernel.
void blur(const BlurConfig& config, double sigma, const Planes& image);

/// Draws the weight of the image itself, max(w, 1 - w) with w from Beta(a, a),
/// a = `concentration` > 0.
double mixup_weight(double concentration, CounterRng& rng);

/// Mixes each image with the next one of the batch, the last one with the first, in place:
/// x_i = w x_i + (1 - w) x_{i+1} with w = `weight`. `images` is [B, ...] float32, contiguous, on
/// any device.
void mix_with_next(at::Tensor& images, double weight);

/// Returns the targets of a mixed batch, [B, classes] float32: w onehot(y_i) +
/// (1 - w) onehot(y_{i+1}) for `labels` y [B] int64.
at::Tensor mixed_labels(const at::Tensor& labels, int64_t classes, double weight);

/// Returns the targets of images that are mixed with those of the labels `next` [B] int64.
at::Tensor mixed_labels(const at::Tensor& labels, const at::Tensor& next, int64_t classes,
                        double weight);

/// A random part of an image, resized to the whole ("Inception" crop, random resized crop).
struct CropConfig {
  double min_area = 0.05, max_area = 1.0;
  double min_aspect = 0.75, max_aspect = 1.33;
};

void describe(auto& f, CropConfig& c) {
  f("min_area", c.min_area, "smallest fraction of the image's area", above(0.0), at_most(1.0));
  f("max_area", c.max_area, "largest fraction of the image's area", above(0.0), at_most(1.0));
  f("min_aspect", c.min_aspect, "smallest aspect ratio, width / height", between(0.01, 100.0));
  f("max_aspect", c.max_aspect, "largest aspect ratio, width / height", between(0.01, 100.0));
}

std::string config_problem(const CropConfig& config);

/// Augmentation of training images, in V-MoE's order: crop, flip, rand_augment; then blur, shift
/// and mixup.
struct AugmentConfig {
  bool flip = false;
  int64_t max_shift = 0;
  std::optional<CropConfig> crop;
  std::optional<RandAugmentConfig> rand_augment;
  std::optional<BlurConfig> blur;
  double mixup = 0.0;
};

void describe(auto& f, AugmentConfig& c) {
  f("flip", c.flip, "horizontal flip with probability 1/2", common);
  f("max_shift", c.max_shift,
    "largest random shift in pixels, horizontally and vertically; 0: none", at_least(0),
    renamed_from("shift"));
  f("crop", c.crop, "random resized crop; {}: its defaults; null: none", common);
  f("rand_augment", c.rand_augment, "settings of RandAugment; {}: V-MoE's light1; null: none");
  f("blur", c.blur,
    "settings of a Gaussian blur of random strength; {}: those of CIFAR-10-Rotate; null: none");
  f("mixup", c.mixup,
    "concentration a of Beta(a, a), the distribution of mixup's weights; 0: no mixup",
    between(0.0, 100.0));
}

/// Draws a part of an image as TensorFlow's sample_distorted_bounding_box does, which V-MoE was
/// trained with. The aspect ratio is uniform in its range; the height is uniform among those that
/// keep the area in its range and the part within the image. Every position is equally likely,
/// except that a part smaller than the image never touches the lower (or right) edge. After 100
/// failed tries the part is the whole image.
Rectangle random_crop(const CropConfig& config, int64_t height, int64_t width, CounterRng& rng);

/// Returns the random-number generator of a position in the order of an epoch.
CounterRng augment_rng(uint64_t seed, int64_t epoch, int64_t position);

/// Turns bytes [C, H, W] into normalised floats [C, H, W]. Each where configured: flip with
/// probability 1/2, rand_augment(), blur by a sigma drawn uniformly from its range, shift by dy, dx
/// drawn uniformly from [-max_shift, max_shift]; then (byte / 255 - mean) / std. What a shift
/// uncovers becomes the value of a byte 0.
class ImageTransform {
 public:
  /// Throws Error (usage) unless mean and std have a value a channel, each std > 0, 0 <= max_shift
  /// < height, width, and images are larger than half the blur's kernel.
  explicit ImageTransform(const DatasetInfo& info, AugmentConfig augment = {});

  /// Transforms `in` [C, H, W], which a flip, rand_augment and blur change in place, to `out`
  /// [C, H, W]. Draws nothing from `rng` where augmentation is off.
  void operator()(uint8_t* in, CounterRng& rng, float* out) const;
  /// Transforms without the last step, for normalised().
  void operator()(uint8_t* in, CounterRng& rng, uint8_t* out) const;

 private:
  /// Value of each byte, by channel.
  template <class Value>
  using Tables = std::vector<std::array<Value, 256>>;

  template <class Value>
  void transform(uint8_t* in, CounterRng& rng, const Tables<Value>& values, Value* out) const;

  int64_t channels_, height_, width_;
  AugmentConfig augment_;
  Tables<float> value_;
};

/// Returns (byte / 255 - mean) / std [B, C, H, W] float32 of bytes_BCHW uint8, the very bits of
/// ImageTransform, for `mean_C` and `std_C` float32 on the same device.
at::Tensor normalised(const at::Tensor& bytes_BCHW, const at::Tensor& mean_C,
                      const at::Tensor& std_C);

}  // namespace moesaic
