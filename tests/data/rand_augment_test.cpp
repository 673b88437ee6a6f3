// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/transforms.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <set>

#include "data/data_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

constexpr int64_t kHeight = 18, kWidth = 23;

Bytes noise(int64_t channels) {
  Bytes bytes;
  uint32_t state = 9;
  for (int64_t i = 0; i < channels * kHeight * kWidth; ++i) {
    state = state * 1664525 + 1013904223;
    bytes.push_back(static_cast<uint8_t>(40 + (state >> 24) * 3 / 5));
  }
  return bytes;
}

Bytes changed(std::string_view name, double magnitude, Bytes bytes, uint64_t position = 0) {
  CounterRng rng(1, 2, position);
  const auto channels = static_cast<int64_t>(bytes.size()) / (kHeight * kWidth);
  const auto op = std::ranges::find(rand_augment_ops(), name, &RandAugmentOp::name);
  op->apply({channels, kHeight, kWidth, bytes.data()}, magnitude / 10.0, rng);
  return bytes;
}

uint8_t at(const Bytes& bytes, int64_t c, int64_t y, int64_t x) {
  return bytes[static_cast<size_t>((c * kHeight + y) * kWidth + x)];
}

/// Calls `want(c, y, x)` for every byte; bytes may be one off where float32 rounds otherwise.
void expect_bytes(const Bytes& found, double tolerance,
                  const std::function<double(int64_t, int64_t, int64_t)>& want) {
  const auto channels = static_cast<int64_t>(found.size()) / (kHeight * kWidth);
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t y = 0; y < kHeight; ++y) {
      for (int64_t x = 0; x < kWidth; ++x) {
        ASSERT_NEAR(at(found, c, y, x), want(c, y, x), tolerance) << c << ", " << y << ", " << x;
      }
    }
  }
}

double mixed(double from, double to, double factor) {
  return std::floor(std::clamp(from + factor * (to - from), 0.0, 255.0));
}

TEST(RandAugment, PointwiseChangesFollowTheirFormulas) {
  const Bytes in = noise(3);
  for (const double m : {0.0, 5.0, 10.0, 15.0, 20.0}) {
    expect_bytes(changed("invert", m, in), 0,
                 [&](int64_t c, int64_t y, int64_t x) { return 255 - at(in, c, y, x); });
    const int bits = static_cast<int>(m / 10 * 4), shift = std::clamp(8 - bits, 0, 7);
    expect_bytes(changed("posterize", m, in), 0, [&](int64_t c, int64_t y, int64_t x) {
      return at(in, c, y, x) / (1 << shift) * (1 << shift);
    });
    const int threshold = static_cast<int>(m / 10 * 256) % 256,
              addition = static_cast<int>(m / 10 * 110);
    expect_bytes(changed("solarize", m, in), 0, [&](int64_t c, int64_t y, int64_t x) {
      const int byte = at(in, c, y, x);
      return byte < threshold ? byte : 255 - byte;
    });
    expect_bytes(changed("solarize_add", m, in), 0, [&](int64_t c, int64_t y, int64_t x) {
      const int byte = at(in, c, y, x);
      return byte < 128 ? std::min(255, byte + addition) : byte;
    });
    const double factor = m / 10 * 1.8 + 0.1;
    expect_bytes(changed("brightness", m, in), 1, [&](int64_t c, int64_t y, int64_t x) {
      return mixed(0, at(in, c, y, x), factor);
    });
    const double grey = std::floor(kHeight * kWidth / 256.0);
    expect_bytes(changed("contrast", m, in), 1, [&](int64_t c, int64_t y, int64_t x) {
      return mixed(grey, at(in, c, y, x), factor);
    });
    expect_bytes(changed("color", m, in), 1 + factor, [&](int64_t c, int64_t y, int64_t x) {
      const double luma =
          0.2989 * at(in, 0, y, x) + 0.587 * at(in, 1, y, x) + 0.114 * at(in, 2, y, x);
      return mixed(std::floor(luma * 255.5 / 255), at(in, c, y, x), factor);
    });
    expect_bytes(changed("sharpness", m, in), 1, [&](int64_t c, int64_t y, int64_t x) -> double {
      const bool edge = y == 0 || x == 0 || y == kHeight - 1 || x == kWidth - 1;
      if (edge) return at(in, c, y, x);
      double sum = 4.0 * at(in, c, y, x);
      for (int64_t i = -1; i <= 1; ++i) {
        for (int64_t j = -1; j <= 1; ++j) sum += at(in, c, y + i, x + j);
      }
      return mixed(std::floor(sum / 13 + 1e-9), at(in, c, y, x), factor);
    });
  }
}

TEST(RandAugment, HistogramChangesFollowTheirFormulas) {
  const Bytes in = noise(3);
  std::map<int64_t, std::array<int, 256>> counts;
  std::map<int64_t, std::pair<int, int>> range;
  for (int64_t c = 0; c < 3; ++c) {
    range[c] = {255, 0};
    for (int64_t i = 0; i < kHeight * kWidth; ++i) {
      const int byte = in[static_cast<size_t>(c * kHeight * kWidth + i)];
      ++counts[c][static_cast<size_t>(byte)];
      range[c] = {std::min(range[c].first, byte), std::max(range[c].second, byte)};
    }
  }
  expect_bytes(changed("auto_contrast", 3, in), 1, [&](int64_t c, int64_t y, int64_t x) {
    const auto [low, high] = range[c];
    return std::floor((at(in, c, y, x) - low) * 255.0 / (high - low));
  });
  expect_bytes(changed("equalize", 3, in), 0, [&](int64_t c, int64_t y, int64_t x) -> double {
    const int last = counts[c][static_cast<size_t>(range[c].second)];
    const int step = static_cast<int>(kHeight * kWidth - last) / 255;
    int below = 0;
    for (size_t value = 0; value < at(in, c, y, x); ++value) below += counts[c][value];
    return below == 0 ? 0 : std::min(255, (below + step / 2) / step);
  });
  EXPECT_EQ(changed("equalize", 3, Bytes(in.size(), 9)), Bytes(in.size(), 9));
  EXPECT_EQ(changed("auto_contrast", 3, Bytes(in.size(), 9)), Bytes(in.size(), 9));
}

TEST(RandAugment, MovesTakeTheNearestPixelAndUncoverGrey) {
  const Bytes in = noise(3);
  for (uint64_t position = 0; position < 8; ++position) {
    for (const double m : {2.0, 10.0}) {
      const double sign = CounterRng(1, 2, position).randint(2) == 1 ? -1 : 1;
      const double angle = sign * m * 3 * std::numbers::pi / 180;
      const double my = (kHeight - 1) / 2.0, mx = (kWidth - 1) / 2.0;
      using Source = std::function<std::pair<double, double>(double, double)>;
      const std::map<std::string, Source> sources = {
          {"shear_x", [&](double y, double x) { return std::pair(y, x + sign * 0.03 * m * y); }},
          {"shear_y", [&](double y, double x) { return std::pair(y + sign * 0.03 * m * x, x); }},
          {"translate_x", [&](double y, double x) { return std::pair(y, x + sign * 10 * m); }},
          {"translate_y", [&](double y, double x) { return std::pair(y + sign * 10 * m, x); }},
          {"rotate",
           [&](double y, double x) {
             return std::pair(my + std::sin(angle) * (x - mx) + std::cos(angle) * (y - my),
                              mx + std::cos(angle) * (x - mx) - std::sin(angle) * (y - my));
           }},
      };
      for (const auto& [name, source] : sources) {
        const Bytes out = changed(name, m, in, position);
        for (int64_t y = 0; y < kHeight; ++y) {
          for (int64_t x = 0; x < kWidth; ++x) {
            const auto [from_y, from_x] = source(static_cast<double>(y), static_cast<double>(x));
            const auto half = [](double v) { return std::abs(v - std::floor(v) - 0.5) < 1e-4; };
            if (half(from_y) || half(from_x)) continue;  // either neighbour is the nearest
            const auto row = std::lround(from_y), column = std::lround(from_x);
            const bool inside = row >= 0 && row < kHeight && column >= 0 && column < kWidth;
            for (int64_t c = 0; c < 3; ++c) {
              ASSERT_EQ(at(out, c, y, x), inside ? at(in, c, row, column) : 128)
                  << name << " " << m << " at " << y << ", " << x;
            }
          }
        }
      }
    }
  }
}

TEST(RandAugment, CutoutIsASquareAroundARandomPixel) {
  const Bytes in = noise(3);
  for (uint64_t position = 0; position < 20; ++position) {
    CounterRng rng(1, 2, position);
    const auto row = static_cast<int64_t>(rng.randint(kHeight));
    const auto column = static_cast<int64_t>(rng.randint(kWidth));
    expect_bytes(changed("cutout", 1, in, position), 0, [&](int64_t c, int64_t y, int64_t x) {
      const bool gone = y >= row - 4 && y < row + 4 && x >= column - 4 && x < column + 4;
      return gone ? 128 : at(in, c, y, x);
    });
  }
}

TEST(RandAugment, DrawsAmongAllChangesAsOftenAsThereAreLayers) {
  const Bytes in = noise(3);
  std::map<Bytes, int> seen;
  for (uint64_t position = 0; position < 1600; ++position) {
    Bytes out = in, again = in;
    CounterRng rng(3, 4, position), same(3, 4, position);
    rand_augment({1, 10}, rng, {3, kHeight, kWidth, out.data()});
    const size_t which = same.randint(rand_augment_ops().size());
    rand_augment_ops()[which].apply({3, kHeight, kWidth, again.data()}, 1.0, same);
    ASSERT_EQ(out, again);
    ++seen[{static_cast<uint8_t>(which)}];
  }
  ASSERT_EQ(seen.size(), 16u);
  for (const auto& [which, count] : seen) EXPECT_NEAR(count, 100, 45);
  Bytes none = in;
  CounterRng rng(3, 4, 0), untouched(3, 4, 0);
  rand_augment({0, 10}, rng, {3, kHeight, kWidth, none.data()});
  EXPECT_EQ(none, in);
  EXPECT_EQ(rng.next(), untouched.next());
}

TEST(RandAugment, OneChannelWorks) {
  for (const RandAugmentOp& op : rand_augment_ops()) {
    EXPECT_EQ(changed(op.name, 10, noise(1)).size(), noise(1).size()) << op.name;
  }
  EXPECT_EQ(changed("color", 10, noise(1)), noise(1));
}

}  // namespace
}  // namespace moesaic
