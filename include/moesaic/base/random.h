// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: every value is a function of (seed, stream, position), so neither
// the number of threads nor a restart changes it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace moesaic {

/// Bijective mixing of 64 bits (the finaliser of SplitMix64).
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Returns the stream id of a purpose, e.g. stream_id("loader.shuffle"); each purpose has its own.
constexpr uint64_t stream_id(std::string_view purpose) {
  uint64_t hash = 0xcbf29ce484222325ULL;  // Offset basis of FNV-1a.
  for (const char c : purpose) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return mix64(hash);
}

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the key
/// comes from seed and stream, the counter is (position, block). Different positions of one stream
/// never share a block.
class CounterRng {
 public:
  /// Starts at the first number of `position`.
  CounterRng(uint64_t seed, uint64_t stream, uint64_t position);

  /// Returns 64 random bits.
  uint64_t next();
  /// Returns an unbiased uniform integer in [0, n). Throws Error (usage) if n is 0.
  uint64_t randint(uint64_t n);
  /// Returns a uniform number in [0, 1) with 53 random bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  /// Returns a sample of N(0, 1) (Box-Muller transform).
  double normal();

 private:
  std::array<uint32_t, 2> key_;
  uint64_t position_;
  uint64_t block_ = 0;
  std::optional<uint64_t> second_;
  std::optional<double> spare_normal_;
};

/// Returns one block of Philox4x32-10, as published.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// Returns a uniformly random permutation of 0..n-1.
std::vector<int64_t> permutation(int64_t n, uint64_t seed, uint64_t stream);

}  // namespace moesaic
