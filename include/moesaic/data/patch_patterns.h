// SPDX-License-Identifier: Apache-2.0
// Data of the pMoE paper's theory (section 4.2): patches that are unit vectors, one of which tells
// the class.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "moesaic/data/patch_patterns_config.h"

namespace moesaic {

/// What the data are made of: o1 and o2, and the centres of the sets S_1, ..., S_p. The first half
/// of these, where there are close patterns, are close in turn to o1 and to o2: <o1 - o2, q> = +-2
/// delta_r. The others have the same product with both.
struct PatternSets {
  at::Tensor deciding_2d;  ///< float32
  at::Tensor centre_pd;    ///< float32
  int64_t close = 0;       ///< Number of sets that are close.
  double radius = 0.0;     ///< Of each set: sqrt((1 - delta_r^2) / (d p^2)) / 2.
};
PatternSets pattern_sets(const PatchPatternsConfig& config);

struct PatchPatterns {
  at::Tensor x_Nnd;    ///< float32, unit vectors
  at::Tensor label_N;  ///< int64: 0 with o1 (y = +1), 1 with o2 (y = -1), in turn.
  at::Tensor place_N;  ///< int64: the patch that is o1 or o2.
};

/// Generates examples `first` to `first + count - 1` of a split. Places are random; l* - 1 patches
/// are of sets that are close to one of o1 and o2, the same one for all of them, chosen at random;
/// the others are of sets that are not. Example i depends on seed, split and i only.
PatchPatterns patch_patterns(const PatchPatternsConfig& config, const std::string& split,
                             int64_t first, int64_t count);

}  // namespace moesaic
