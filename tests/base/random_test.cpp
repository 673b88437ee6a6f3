// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/random.h"

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/support.h"

namespace moesaic {
namespace {

// Known answers of the authors' library Random123.
TEST(Philox, AgreesWithThePublishedVectors) {
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The first values of SplitMix64 started at 1234567.
TEST(Mix64, AgreesWithSplitMix) {
  EXPECT_EQ(mix64(1234567), 6457827717110365317ULL);
  EXPECT_EQ(mix64(1234567 + 0x9e3779b97f4a7c15ULL), 3203168211198807973ULL);
}

// Saved runs depend on these bits: a change here makes every seed mean something else.
TEST(CounterRng, KeepsItsValues) {
  CounterRng random(42, stream_id("test"), 7);
  const uint64_t first = random.next();
  CounterRng again(42, stream_id("test"), 7);
  EXPECT_EQ(again.next(), first);
  const uint64_t key = mix64(42 + mix64(stream_id("test")));
  const auto block =
      philox4x32({0, 0, 7, 0}, {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  EXPECT_EQ(first, uint64_t{block[1]} << 32 | block[0]);
  EXPECT_EQ(random.next(), uint64_t{block[3]} << 32 | block[2]);
}

TEST(CounterRng, DiffersBySeedStreamAndPosition) {
  std::set<uint64_t> values;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (uint64_t stream = 0; stream < 10; ++stream) {
      for (uint64_t position = 0; position < 10; ++position) {
        CounterRng random(seed, stream, position);
        for (int i = 0; i < 10; ++i) values.insert(random.next());
      }
    }
  }
  EXPECT_EQ(values.size(), 10'000u);
}

TEST(CounterRng, BelowIsUniformAndInRange) {
  std::array<int, 7> counts{};
  CounterRng random(1, 2, 3);
  constexpr int kDraws = 70'000;
  for (int i = 0; i < kDraws; ++i) ++counts.at(random.randint(7));
  double chi2 = 0;
  for (const int n : counts) chi2 += (n - 10'000.0) * (n - 10'000.0) / 10'000.0;
  EXPECT_LT(chi2, 22.5);  // 6 degrees of freedom: passed by 99.9 % of fair dice
  for (int i = 0; i < 100; ++i) EXPECT_EQ(random.randint(1), 0u);
  test::usage_of([&] { random.randint(0); });
}

// With a bound of three quarters of 2^64, mapping without rejection would give the multiples of 3
// twice as often as the rest, and a plain remainder the first quarter.
TEST(CounterRng, BelowHasNoBiasForHugeBounds) {
  constexpr uint64_t kBound = 3ULL << 62;
  std::array<int, 3> counts{};
  CounterRng random(5, 6, 7);
  for (int i = 0; i < 30'000; ++i) ++counts.at(random.randint(kBound) >> 62);
  for (const int n : counts) EXPECT_NEAR(n, 10'000, 400);
  std::array<int, 3> residues{};
  for (int i = 0; i < 30'000; ++i) ++residues.at(random.randint(kBound) % 3);
  for (const int n : residues) EXPECT_NEAR(n, 10'000, 400);
}

TEST(CounterRng, UniformStaysInTheHalfOpenInterval) {
  CounterRng random(1, 1, 1);
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double u = random.uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);
}

TEST(CounterRng, NormalHasItsMoments) {
  constexpr int kDraws = 200'000;
  CounterRng random(3, 1, 4);
  std::array<double, 5> moments{};
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.normal();
    ASSERT_TRUE(std::isfinite(x));
    for (std::size_t k = 1; k < moments.size(); ++k) moments[k] += std::pow(x, k) / kDraws;
  }
  EXPECT_NEAR(moments[1], 0.0, 0.01);
  EXPECT_NEAR(moments[2], 1.0, 0.02);
  EXPECT_NEAR(moments[3], 0.0, 0.04);
  EXPECT_NEAR(moments[4], 3.0, 0.12);
}

TEST(Permutation, HoldsEveryNumberOnce) {
  for (const int64_t n : {0, 1, 2, 1000}) {
    auto order = permutation(n, 9, stream_id("shuffle"));
    std::sort(order.begin(), order.end());
    std::vector<int64_t> expected(static_cast<std::size_t>(n));
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(order, expected);
  }
  test::usage_of([] { permutation(-1, 0, 0); });
}

TEST(Permutation, DependsOnSeedAndStreamOnly) {
  EXPECT_EQ(permutation(100, 1, 2), permutation(100, 1, 2));
  EXPECT_NE(permutation(100, 1, 2), permutation(100, 2, 2));
  EXPECT_NE(permutation(100, 1, 2), permutation(100, 1, 3));
}

TEST(Permutation, MakesEveryOrderEquallyLikely) {
  std::map<std::vector<int64_t>, int> counts;
  for (uint64_t seed = 0; seed < 6000; ++seed) ++counts[permutation(3, seed, 1)];
  ASSERT_EQ(counts.size(), 6u);
  for (const auto& [order, n] : counts) EXPECT_NEAR(n, 1000, 120);
}

TEST(StreamId, DiffersByName) {
  static_assert(stream_id("a") != stream_id("b"));
  EXPECT_NE(stream_id("loader.shuffle"), stream_id("loader.augment"));
  EXPECT_NE(stream_id(""), stream_id("a"));
}

}  // namespace
}  // namespace moesaic
