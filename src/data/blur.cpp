// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/blur.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace moesaic {
namespace {

std::vector<float> gaussian_weights(int64_t count, double sigma) {
  std::vector<double> weights;
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const double at = static_cast<double>(i - count / 2) / sigma;
    weights.push_back(std::exp(-0.5 * at * at));
    sum += weights.back();
  }
  std::vector<float> normalised;
  for (const double weight : weights) normalised.push_back(static_cast<float>(weight / sum));
  return normalised;
}

/// The place within [0, size) that a mirror at the borders shows at `at`.
int64_t mirrored(int64_t at, int64_t size) {
  return at < 0 ? -at : at >= size ? 2 * (size - 1) - at : at;
}

}  // namespace

std::string config_problem(const BlurConfig& config) {
  if (config.width % 2 == 0 || config.height % 2 == 0) return "width and height must be odd";
  return config.min_sigma > config.max_sigma ? "min_sigma is above max_sigma" : "";
}

void blur(const BlurConfig& config, double sigma, const Planes& image) {
  const std::vector<float> across = gaussian_weights(config.width, sigma);
  const std::vector<float> down = gaussian_weights(config.height, sigma);
  const int64_t height = image.height, width = image.width, half = config.width / 2;
  std::vector<float> row(static_cast<size_t>(width + 2 * half)), sums(static_cast<size_t>(width));
  std::vector<float> rows(static_cast<size_t>(image.plane()));
  for (int64_t c = 0; c < image.channels; ++c) {
    uint8_t* const plane = image.pixels + c * image.plane();
    for (int64_t y = 0; y < height; ++y) {
      const uint8_t* const in = plane + y * width;
      for (int64_t x = -half; x < width + half; ++x) {
        row[static_cast<size_t>(x + half)] = in[mirrored(x, width)];
      }
      float* const out = rows.data() + y * width;
      std::fill_n(out, width, 0.0F);
      for (size_t i = 0; i < across.size(); ++i) {
        for (int64_t x = 0; x < width; ++x) out[x] += across[i] * row[i + static_cast<size_t>(x)];
      }
    }
    for (int64_t y = 0; y < height; ++y) {
      std::fill(sums.begin(), sums.end(), 0.0F);
      for (int64_t i = 0; i < config.height; ++i) {
        const float weight = down[static_cast<size_t>(i)];
        const float* const in = rows.data() + mirrored(y + i - config.height / 2, height) * width;
        for (int64_t x = 0; x < width; ++x) sums[static_cast<size_t>(x)] += weight * in[x];
      }
      for (int64_t x = 0; x < width; ++x) {
        plane[y * width + x] = static_cast<uint8_t>(std::nearbyint(sums[static_cast<size_t>(x)]));
      }
    }
  }
}

}  // namespace moesaic
