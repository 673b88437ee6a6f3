// SPDX-License-Identifier: Apache-2.0
// The kernels of spherical_sgd(), without tensors. Neurons lie side by side in the lanes of vectors
// and process a chunk of samples at a time: the chunk's products with the weights, then its steps
// on these products alone by the chunk's Gram matrix, then the sum of all that the steps add. So an
// exact sequence of steps costs what two matrix products cost, and nothing is summed across lanes.
#pragma once

#include <cstdint>
#include <vector>

namespace moesaic {
struct SphericalNeurons;
struct RoutedSamples;
}  // namespace moesaic

namespace moesaic::ops {

inline constexpr int kChunkSamples = 8;

/// A chunk: inputs [width, kChunkSamples], the Gram matrix of the samples, and step pi y of each.
inline int64_t chunk_size(int64_t width) {
  return kChunkSamples * (width + kChunkSamples + 1);
}

/// Writes a chunk of the samples at `rows` of `width` numbers each. A missing sample is a row
/// of zeros with strength 0, whose step changes nothing.
using PackChunk = void (*)(const float* const* rows, const float* strength, int64_t width,
                           float* chunk);

struct SphericalRows {
  float* w;  ///< [neurons, width]
  const float *a, *b;
  const float* hermite;  ///< [neurons, coefficients], or null for ReLU.
  int64_t coefficients;
  int64_t width;
};

/// Takes the steps of `count` chunks for `neurons` rows from `first` on, at most the kernel's
/// lanes.
using AdvanceRows = void (*)(const SphericalRows& rows, int64_t first, int64_t neurons,
                             const float* chunks, int64_t count, float* scratch);

/// The same computation in the vectors of one instruction set.
struct SphericalKernel {
  const char* name;
  int64_t lanes;
  PackChunk pack;
  AdvanceRows advance;

  /// Numbers of an AdvanceRows' scratch memory, which is aligned to 64 bytes.
  int64_t scratch_size(int64_t width, int64_t coefficients) const;
};

/// Those that run on this processor, the fastest first.
std::vector<SphericalKernel> spherical_kernels();

/// spherical_sgd() by one of them.
void spherical_sgd_by(const SphericalKernel& kernel, SphericalNeurons& neurons,
                      const RoutedSamples& samples, double step);

}  // namespace moesaic::ops
