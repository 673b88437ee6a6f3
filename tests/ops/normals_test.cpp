// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/normals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "moesaic/base/random.h"

namespace moesaic {
namespace {

constexpr uint64_t kSeed = 7;
const uint64_t kStream = stream_id("test.normals");

std::vector<float> normals(int64_t first, int64_t count, int64_t num_normals) {
  std::vector<float> out(static_cast<size_t>(num_normals * count));
  SampleRng(kSeed, kStream).normals(first, count, num_normals, out.data(), count);
  return out;
}

/// The words of a block, as CounterRng's key and counter give them.
std::array<uint32_t, 4> words(uint64_t sample, uint32_t block) {
  const uint64_t key = mix64(kSeed + mix64(kStream));
  return philox4x32({block, 0, static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
                    {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
}

TEST(SampleRng, NormalsAreBoxAndMullersOfPublishedWords) {
  const uint64_t first = (uint64_t{5} << 32) - 40;  // The words of samples cross 2^32.
  const auto found = normals(static_cast<int64_t>(first), 100, 7);
  for (uint64_t i = 0; i < 100; ++i) {
    for (uint32_t j = 0; j < 7; ++j) {
      const auto word = words(first + i, j / 4);
      const size_t pair = j % 4 / 2 * 2;
      const double u = (static_cast<double>(word[pair] >> 1) + 0.5) / 2147483648.0;
      const double angle = 2.0 * std::numbers::pi * word[pair + 1] / 4294967296.0;
      const double radius = std::sqrt(-2.0 * std::log(u));
      const double wanted = radius * (j % 2 == 0 ? std::cos(angle) : std::sin(angle));
      EXPECT_NEAR(found[j * 100 + i], wanted, radius > 0.01 ? 4e-6 : 4e-4);
    }
  }
}

// Generated data must not change with the compiler or the processor.
TEST(SampleRng, KeepsItsBits) {
  const std::vector<float> found = normals(1000, 3, 2);
  const std::vector<float> wanted = {-0x1.905dbep-1F, 0x1.8612b2p-1F,  -0x1.66da1p-2F,
                                     0x1.21c6e8p-3F,  -0x1.80fcaep-2F, -0x1.0f13dcp+0F};
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(found[i], wanted[i]) << std::hexfloat << found[i];
  }
}

TEST(SampleRng, ASampleIsTheSameInAnyRange) {
  const auto whole = normals(10, 200, 5);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{10, 1}, {73, 64}, {100, 110}}) {
    const auto part = normals(first, count, 5);
    for (int64_t j = 0; j < 5; ++j) {
      for (int64_t i = 0; i < count; ++i) {
        EXPECT_EQ(part[static_cast<size_t>(j * count + i)],
                  whole[static_cast<size_t>(j * 200 + first - 10 + i)]);
      }
    }
  }
}

TEST(SampleRng, RowsAreTheSameNumbers) {
  constexpr int64_t kFirst = 1000, kCount = 131, kStride = 13;
  const float untouched = -100.0F;
  for (const int64_t numbers : {1, 4, 7, 12}) {
    const auto wanted = normals(kFirst, kCount, numbers);
    std::vector<float> found(kCount * kStride, untouched);
    SampleRng(kSeed, kStream).normal_rows(kFirst, kCount, numbers, found.data(), kStride);
    for (int64_t i = 0; i < kCount; ++i) {
      for (int64_t j = 0; j < kStride; ++j) {
        EXPECT_EQ(found[static_cast<size_t>(i * kStride + j)],
                  j < numbers ? wanted[static_cast<size_t>(j * kCount + i)] : untouched);
      }
    }
  }
}

TEST(SampleRng, NormalsHaveTheMomentsAndTheDistribution) {
  constexpr int64_t kCount = 100000;
  auto numbers = normals(0, kCount, 10);
  double moments[5] = {};
  for (const float z : numbers) {
    for (int p = 1; p <= 4; ++p) moments[p] += std::pow(static_cast<double>(z), p);
  }
  const auto n = static_cast<double>(numbers.size());
  EXPECT_NEAR(moments[1] / n, 0.0, 5.0 / std::sqrt(n));
  EXPECT_NEAR(moments[2] / n, 1.0, 5.0 * std::sqrt(2.0 / n));
  EXPECT_NEAR(moments[3] / n, 0.0, 5.0 * std::sqrt(15.0 / n));
  EXPECT_NEAR(moments[4] / n, 3.0, 5.0 * std::sqrt(96.0 / n));
  std::sort(numbers.begin(), numbers.end());
  double worst = 0.0;  // Statistic of Kolmogorov and Smirnov.
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double cdf = 0.5 * std::erfc(-numbers[i] / std::numbers::sqrt2);
    worst = std::max(worst, std::abs(cdf - (static_cast<double>(i) + 0.5) / n));
  }
  EXPECT_LT(worst * std::sqrt(n), 2.0);
}

TEST(SampleRng, UniformsAreHighBitsOfABlockOfFourNeighbours) {
  constexpr int64_t kFirst = 3, kCount = 600;
  std::vector<float> found(kCount);
  SampleRng(kSeed, kStream).uniforms(kFirst, kCount, 6, found.data());
  for (uint64_t i = 0; i < kCount; ++i) {
    const uint64_t sample = kFirst + i;
    EXPECT_EQ(found[i], static_cast<float>(words(sample / 4, 6)[sample % 4] >> 8) / 16777216.0f);
  }
}

}  // namespace
}  // namespace moesaic
