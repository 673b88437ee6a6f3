// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/random.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

__extension__ using uint128 = unsigned __int128;

constexpr uint32_t low(uint64_t x) {
  return static_cast<uint32_t>(x);
}
constexpr uint32_t high(uint64_t x) {
  return static_cast<uint32_t>(x >> 32);
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {high(b) ^ counter[1] ^ key[0], low(b), high(a) ^ counter[3] ^ key[1], low(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

CounterRng::CounterRng(uint64_t seed, uint64_t stream, uint64_t position) : position_(position) {
  const uint64_t key = mix64(seed + mix64(stream));
  key_ = {low(key), high(key)};
}

uint64_t CounterRng::next() {
  if (second_) return *std::exchange(second_, std::nullopt);
  const auto word = philox4x32({low(block_), high(block_), low(position_), high(position_)}, key_);
  ++block_;
  second_ = (uint64_t{word[3]} << 32) | word[2];
  return (uint64_t{word[1]} << 32) | word[0];
}

// Uses the method of Lemire, "Fast random integer generation in an interval", 2019.
uint64_t CounterRng::randint(uint64_t n) {
  if (n == 0) fail_usage("CounterRng::randint: the bound must be positive");
  uint128 product = uint128{next()} * n;
  if (static_cast<uint64_t>(product) < n) {
    const uint64_t surplus = (0 - n) % n;  // 2^64 mod n: values hit once too often.
    while (static_cast<uint64_t>(product) < surplus) product = uint128{next()} * n;
  }
  return static_cast<uint64_t>(product >> 64);
}

double CounterRng::normal() {
  if (spare_normal_) return *std::exchange(spare_normal_, std::nullopt);
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));  // 1 - u > 0.
  const double angle = 2.0 * std::numbers::pi * uniform();
  spare_normal_ = radius * std::sin(angle);
  return radius * std::cos(angle);
}

std::vector<int64_t> permutation(int64_t n, uint64_t seed, uint64_t stream) {
  if (n < 0) fail_usage("permutation: the length must not be negative, it is {}", n);
  std::vector<int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  CounterRng random(seed, stream, 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.randint(i)]);
  return order;
}

}  // namespace moesaic
