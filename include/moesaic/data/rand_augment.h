// SPDX-License-Identifier: Apache-2.0
// RandAugment (Cubuk, Zoph, Shlens and Le, arXiv:1909.13719), with the sixteen operations of the
// pipelines that V-MoE was trained with.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "moesaic/base/random.h"
#include "moesaic/config/schema.h"

namespace moesaic {

struct RandAugmentConfig {
  int64_t layers = 2;
  double magnitude = 10.0;
};

template <class Fields>
void describe(Fields& f, RandAugmentConfig& c) {
  f("layers", c.layers, "changes made one after the other, each drawn from sixteen",
    between(0, 16));
  f("magnitude", c.magnitude, "strength; V-MoE: light0 0, light1 10, medium 15, strong 20",
    between(0.0, 20.0));
}

/// Bytes of an image, [channels, height, width], one or three channels, changed in place.
struct Planes {
  int64_t channels, height, width;
  uint8_t* pixels;
  int64_t plane() const { return height * width; }
};

/// Applies `layers` operations, each chosen uniformly. With m the magnitude: rotate by +-3 m
/// degrees, shear_x and shear_y by +-0.03 m, translate_x and translate_y by +-10 m pixels (these
/// five with the nearest pixel, 128 outside), color, contrast, brightness and sharpness by a factor
/// of 0.18 m + 0.1, posterize to int(0.4 m) bits (0 counts as 1), solarize from int(25.6 m) mod 256
/// on, solarize_add int(11 m) below 128, cutout of a square of half side int(4 m) around a random
/// pixel, and auto_contrast, equalize and invert. As in those pipelines, contrast blends with a
/// grey of min(255, pixels / 256) for any image, and solarize at magnitudes 10 and 20 inverts,
/// since 256 is 0 as a byte.
void rand_augment(const RandAugmentConfig& config, CounterRng& rng, const Planes& image);

/// Returns the names of the operations, in the order in which they are drawn.
const std::vector<std::string_view>& rand_augment_changes();

/// Applies one operation by its name; `rng` draws the sign or, for cutout, row and column of the
/// centre. Throws Error (usage) for an unknown name.
void rand_augment_change(std::string_view name, double magnitude, CounterRng& rng,
                         const Planes& image);

}  // namespace moesaic
