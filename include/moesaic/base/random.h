// SPDX-License-Identifier: Apache-2.0
// Random numbers by position: every value is a function of (seed, stream, position), so neither the
// number of threads nor a restart in the middle changes it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace moesaic {

/// A bijective scrambling of 64 bits (the finaliser of SplitMix64).
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// A stream of its own for every purpose: stream_id("loader.shuffle").
constexpr uint64_t stream_id(std::string_view purpose) {
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char c : purpose) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return mix64(hash);
}

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the key
/// comes from seed and stream, the counter is (position, block). Different positions of one stream
/// never share a block.
class CounterRng {
 public:
  CounterRng(uint64_t seed, uint64_t stream, uint64_t position);

  uint64_t next();
  /// Uniform in [0, n) without bias; n must not be 0.
  uint64_t below(uint64_t n);
  /// Uniform in [0, 1), 53 bits.
  double uniform();
  /// Normal with mean 0 and variance 1 (Box and Muller).
  double normal();

 private:
  std::array<uint32_t, 2> key_;
  uint64_t position_;
  uint64_t block_ = 0;
  uint64_t second_ = 0;
  bool has_second_ = false;
  double spare_normal_ = 0.0;
  bool has_spare_normal_ = false;
};

/// One block of Philox4x32-10, as published.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// 0..n-1 in random order, every order equally likely.
std::vector<int64_t> permutation(int64_t n, uint64_t seed, uint64_t stream);

}  // namespace moesaic
