// SPDX-License-Identifier: Apache-2.0
// Random numbers of many samples at once, by vector instructions.
#pragma once

#include <array>
#include <cstdint>

namespace moesaic {

/// Philox4x32-10 (base/random.h) keyed by seed and stream. Sample i has the blocks (i, 0), (i, 1),
/// ... of four words each, so that its numbers depend on seed, stream and i only, with the same
/// bits on every processor.
class SampleRng {
 public:
  /// Keys the generator.
  SampleRng(uint64_t seed, uint64_t stream);

  /// Writes number j < `num_normals` of sample first + i to to[j * stride + i], for i < `count`:
  /// independent samples of N(0, 1) by Box-Muller, |z| < 6.7, to 4e-6 but near 0. Numbers 4 b to
  /// 4 b + 3 are made of block b.
  void normals(int64_t first, int64_t count, int64_t num_normals, float* to, int64_t stride) const;
  /// Writes the same numbers with those of a sample side by side: number j of sample first + i to
  /// to[i * stride + j].
  void normal_rows(int64_t first, int64_t count, int64_t num_normals, float* to,
                   int64_t stride) const;
  /// Writes a number in [0, 1) of 24 random bits for each sample: word i % 4 of block (i / 4,
  /// block), which four samples share and no call of `normals` may use.
  void uniforms(int64_t first, int64_t count, int64_t block, float* to) const;

 private:
  std::array<uint32_t, 2> key_;
};

}  // namespace moesaic
