// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "moesaic/config/schema.h"
#include "moesaic/data/rand_augment.h"

namespace moesaic {

/// Gaussian blur of random strength.
struct BlurConfig {
  int64_t width = 3, height = 7;
  double min_sigma = 1.1, max_sigma = 2.2;
};

template <class Fields>
void describe(Fields& f, BlurConfig& c) {
  f("width", c.width, "pixels beside each other that count, an odd number", between(1, 255));
  f("height", c.height, "pixels above each other that count, an odd number", between(1, 255));
  f("min_sigma", c.min_sigma, "min standard deviation, in pixels", between(0.01, 1000.0));
  f("max_sigma", c.max_sigma, "largest standard deviation", between(0.01, 1000.0));
}

std::string config_problem(const BlurConfig& config);

/// Blurs an image in place: each byte becomes the mean of the `config.height` x `config.width`
/// bytes around it, weighted in proportion to exp(-(dx^2 + dy^2) / (2 sigma^2)) and rounded to
/// nearest, ties to even. The image is mirrored at its borders without repeating them and has to be
/// larger than half the kernel.
void blur(const BlurConfig& config, double sigma, const Planes& image);

}  // namespace moesaic
