// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"

namespace moesaic {

/// Data of the pMoE paper's theory, section 4.2.
struct PatchPatternsConfig {
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

}  // namespace moesaic
