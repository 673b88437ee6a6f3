// SPDX-License-Identifier: Apache-2.0
// Data of the pMoE paper's theory (section 4.2): patches that are unit vectors, one of which tells
// the class.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"

namespace moesaic {

/// Data of the pMoE paper's theory, section 4.2.
struct PatchPatternsConfig {
  static constexpr const char* kKey = "patterns";  ///< Of a description.
  int64_t width = 50, patches = 16, sets = 8, threshold = 4;
  double delta_d = 0.0, delta_r = 0.6;
  int64_t train = 1000, test = 1000, seed = 1;
};
template <class Fields>
void describe(Fields& f, PatchPatternsConfig& c) {
  f("width", c.width, "d of a patch", between(4, 65536));
  f("patches", c.patches, "n of an example", between(2, 65536));
  f("sets", c.sets, "p, sets of patterns that do not tell the class", between(3, 65536));
  f("threshold", c.threshold,
    "l*: of an example's patches that do not tell the class, l* - 1 are closer to one of o1 and o2",
    between(1, 65536));
  f("delta_d", c.delta_d, "<o1, o2>", above(-1.0), below(1.0));
  f("delta_r", c.delta_r, "most of |<o, q>| of a pattern q that does not tell the class",
    between(0.0, 1.0));
  f("train", c.train, "examples of an epoch; there is no end of them", at_least(1));
  f("test", c.test, "examples of the test split", between(1, 10000000));
  f("seed", c.seed, "seed of all examples", at_least(0));
}
/// Checks that so many patches are left to be close, and that patterns can be close: 2 delta_r >
/// (1 - delta_d) / 2, with |q| = 1.
ConfigProblem config_problem(const PatchPatternsConfig& config);

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
