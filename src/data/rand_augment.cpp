// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/transforms.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numbers>

#include "moesaic/base/error.h"
#include "moesaic/base/suggestions.h"

namespace moesaic {
namespace {

constexpr uint8_t kNothing = 128;  // Fill value of uncovered pixels.
constexpr double kFullMagnitude = 10.0;

/// Casts a float to a byte as TensorFlow does, for values within [0, 256).
uint8_t cut(float value) {
  return static_cast<uint8_t>(value);
}

void map_bytes(const Planes& p, auto&& f) {
  for (int64_t i = 0; i < p.channels * p.plane_size(); ++i) p.pixels[i] = f(p.pixels[i]);
}

/// Blends: factor 0 gives `from`, factor 1 gives `to`, others extrapolate.
uint8_t blend(uint8_t from, uint8_t to, float factor) {
  const auto a = static_cast<float>(from), b = static_cast<float>(to);
  return cut(std::clamp(a + factor * (b - a), 0.0f, 255.0f));
}

uint8_t grey_at(const Planes& p, int64_t i) {
  if (p.channels != 3) return p.pixels[i];
  const auto unit = [&](int64_t c) {
    return static_cast<float>(p.pixels[c * p.plane_size() + i]) / 255.0f;
  };
  return cut((0.2989f * unit(0) + 0.5870f * unit(1) + 0.1140f * unit(2)) * 255.5f);
}

/// Returns the factor of a change that blends.
float factor_of(double fraction) {
  return static_cast<float>(fraction * 1.8 + 0.1);
}

void color(const Planes& p, double fraction, CounterRng&) {
  for (int64_t i = 0; i < p.plane_size(); ++i) {
    const uint8_t grey = grey_at(p, i);
    for (int64_t c = 0; c < p.channels; ++c) {
      uint8_t& byte = p.pixels[c * p.plane_size() + i];
      byte = blend(grey, byte, factor_of(fraction));
    }
  }
}

void contrast(const Planes& p, double fraction, CounterRng&) {
  const uint8_t grey = cut(std::min(255.0f, static_cast<float>(p.plane_size()) / 256.0f));
  map_bytes(p, [&](uint8_t byte) { return blend(grey, byte, factor_of(fraction)); });
}

void brightness(const Planes& p, double fraction, CounterRng&) {
  map_bytes(p, [&](uint8_t byte) { return blend(0, byte, factor_of(fraction)); });
}

void sharpness(const Planes& p, double fraction, CounterRng&) {
  const std::vector<uint8_t> before(p.pixels, p.pixels + p.channels * p.plane_size());
  for (int64_t c = 0; c < p.channels; ++c) {
    const uint8_t* in = before.data() + c * p.plane_size();
    uint8_t* out = p.pixels + c * p.plane_size();
    for (int64_t y = 1; y + 1 < p.height; ++y) {
      for (int64_t x = 1; x + 1 < p.width; ++x) {
        const int64_t at = y * p.width + x;
        int sum = 4 * in[at];  // The centre counts five times.
        for (const int64_t row : {at - p.width, at, at + p.width}) {
          sum += in[row - 1] + in[row] + in[row + 1];
        }
        out[at] = blend(static_cast<uint8_t>(sum / 13), in[at], factor_of(fraction));
      }
    }
  }
}

void posterize(const Planes& p, double fraction, CounterRng&) {
  const auto bits = static_cast<int64_t>(fraction * 4);
  const auto shift = static_cast<int>(std::clamp<int64_t>(8 - bits, 0, 7));
  map_bytes(p, [&](uint8_t byte) { return static_cast<uint8_t>(byte >> shift << shift); });
}

/// Inverts pixels from the threshold on, a byte as in TensorFlow: 256 becomes 0 and inverts all.
void solarize(const Planes& p, double fraction, CounterRng&) {
  const auto min = static_cast<uint8_t>(static_cast<int64_t>(fraction * 256) % 256);
  map_bytes(p, [&](uint8_t byte) { return byte < min ? byte : static_cast<uint8_t>(255 - byte); });
}

void solarize_add(const Planes& p, double fraction, CounterRng&) {
  const auto addition = static_cast<int64_t>(fraction * 110);
  map_bytes(p, [&](uint8_t byte) {
    return byte < 128 ? static_cast<uint8_t>(std::min<int64_t>(255, byte + addition)) : byte;
  });
}

void invert(const Planes& p, double, CounterRng&) {
  map_bytes(p, [](uint8_t byte) { return static_cast<uint8_t>(255 - byte); });
}

void auto_contrast(const Planes& p, double, CounterRng&) {
  for (int64_t c = 0; c < p.channels; ++c) {
    uint8_t* plane = p.pixels + c * p.plane_size();
    const auto [min, max] = std::minmax_element(plane, plane + p.plane_size());
    if (*max <= *min) continue;
    const float scale = 255.0f / static_cast<float>(*max - *min);
    const float offset = -static_cast<float>(*min) * scale;
    std::transform(plane, plane + p.plane_size(), plane, [&](uint8_t byte) {
      return cut(std::clamp(static_cast<float>(byte) * scale + offset, 0.0f, 255.0f));
    });
  }
}

void equalize(const Planes& p, double, CounterRng&) {
  for (int64_t c = 0; c < p.channels; ++c) {
    uint8_t* plane = p.pixels + c * p.plane_size();
    std::array<int64_t, 256> count{};
    for (int64_t i = 0; i < p.plane_size(); ++i) ++count[plane[i]];
    const auto last = std::find_if(count.rbegin(), count.rend(), [](int64_t n) { return n > 0; });
    const int64_t step = (p.plane_size() - *last) / 255;
    if (step == 0) continue;
    std::array<uint8_t, 256> becomes{};
    int64_t below = 0;
    for (size_t value = 1; value < 256; ++value) {
      below += count[value - 1];
      becomes[value] = static_cast<uint8_t>(std::min<int64_t>(255, (below + step / 2) / step));
    }
    std::transform(plane, plane + p.plane_size(), plane,
                   [&](uint8_t byte) { return becomes[byte]; });
  }
}

/// Source of the output's pixel x, y: a x + b y + c, d x + e y + f.
struct Affine {
  float a = 1, b = 0, c = 0, d = 0, e = 1, f = 0;
};

void move_pixels(const Planes& p, const Affine& from) {
  const std::vector<uint8_t> before(p.pixels, p.pixels + p.channels * p.plane_size());
  for (int64_t y = 0; y < p.height; ++y) {
    for (int64_t x = 0; x < p.width; ++x) {
      const auto fx = static_cast<float>(x), fy = static_cast<float>(y);
      const auto in_x = static_cast<int64_t>(std::round(from.a * fx + from.b * fy + from.c));
      const auto in_y = static_cast<int64_t>(std::round(from.d * fx + from.e * fy + from.f));
      const bool inside = in_x >= 0 && in_x < p.width && in_y >= 0 && in_y < p.height;
      for (int64_t c = 0; c < p.channels; ++c) {
        p.pixels[c * p.plane_size() + y * p.width + x] =
            inside ? before[static_cast<size_t>(c * p.plane_size() + in_y * p.width + in_x)]
                   : kNothing;
      }
    }
  }
}

double signed_by(CounterRng& rng, double value) {
  return rng.randint(2) == 1 ? -value : value;
}

/// Shears or translates by one number of the map.
template <float Affine::*entry, bool shears>
void move_along(const Planes& p, double fraction, CounterRng& rng) {
  Affine from;
  from.*entry = static_cast<float>(signed_by(rng, fraction * (shears ? 0.3 : 100.0)));
  move_pixels(p, from);
}

void rotate(const Planes& p, double fraction, CounterRng& rng) {
  const double angle = signed_by(rng, fraction * 30.0) * std::numbers::pi / 180.0;
  const double cosine = std::cos(angle), sine = std::sin(angle);
  const auto w = static_cast<double>(p.width - 1), h = static_cast<double>(p.height - 1);
  const auto f = [](double value) { return static_cast<float>(value); };
  move_pixels(p, {f(cosine), f(-sine), f((w - (cosine * w - sine * h)) / 2), f(sine), f(cosine),
                  f((h - (sine * w + cosine * h)) / 2)});
}

void cutout(const Planes& p, double fraction, CounterRng& rng) {
  const auto half = static_cast<int64_t>(fraction * 40);
  const auto row = static_cast<int64_t>(rng.randint(static_cast<uint64_t>(p.height)));
  const auto column = static_cast<int64_t>(rng.randint(static_cast<uint64_t>(p.width)));
  const int64_t top = std::max<int64_t>(0, row - half), left = std::max<int64_t>(0, column - half);
  const int64_t bottom = std::min(p.height, row + half), right = std::min(p.width, column + half);
  for (int64_t c = 0; c < p.channels; ++c) {
    for (int64_t y = top; y < bottom; ++y) {
      uint8_t* line = p.pixels + c * p.plane_size() + y * p.width;
      std::fill(line + left, line + std::max(left, right), kNothing);
    }
  }
}

struct Change {
  std::string_view name;
  void (*apply)(const Planes&, double fraction, CounterRng&);  ///< Of the full magnitude.
};

constexpr Change kChanges[] = {
    {"auto_contrast", auto_contrast},
    {"equalize", equalize},
    {"invert", invert},
    {"rotate", rotate},
    {"posterize", posterize},
    {"solarize", solarize},
    {"color", color},
    {"contrast", contrast},
    {"brightness", brightness},
    {"sharpness", sharpness},
    {"shear_x", move_along<&Affine::b, true>},
    {"shear_y", move_along<&Affine::d, true>},
    {"translate_x", move_along<&Affine::c, false>},
    {"translate_y", move_along<&Affine::f, false>},
    {"cutout", cutout},
    {"solarize_add", solarize_add},
};

}  // namespace

const std::vector<std::string_view>& rand_augment_ops() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> list;
    for (const Change& change : kChanges) list.push_back(change.name);
    return list;
  }();
  return names;
}

void apply_rand_augment_op(std::string_view name, double magnitude, CounterRng& rng,
                           const Planes& image) {
  for (const Change& change : kChanges) {
    if (change.name == name) return change.apply(image, magnitude / kFullMagnitude, rng);
  }
  const auto& names = rand_augment_ops();
  fail_usage("rand_augment has no change '{}'; {}", name,
             did_you_mean(name, std::vector<std::string>(names.begin(), names.end())));
}

void rand_augment(const RandAugmentConfig& config, CounterRng& rng, const Planes& image) {
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const Change& change = kChanges[rng.randint(std::size(kChanges))];
    change.apply(image, config.magnitude / kFullMagnitude, rng);
  }
}

}  // namespace moesaic
