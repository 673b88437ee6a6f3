// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moesaic/config/schema.h"

namespace moesaic {

/// Data of the pruning paper's theory, section 4.2.
struct PatternTokensConfig {
  int64_t patterns = 200, tokens = 100, train = 12800, test = 4000, seed = 1;
};
template <class Fields>
void describe(Fields& f, PatternTokensConfig& c) {
  f("patterns", c.patterns, "d: two that decide the class, the others occur in both",
    between(3, 65536));
  f("tokens", c.tokens, "n of an example", between(1, 65536));
  f("train", c.train, "examples that count as an epoch; there is no end of them",
    between(1, 1000000000));
  f("test", c.test, "examples of the test split", between(1, 10000000));
  f("seed", c.seed, "seed of all examples", at_least(0));
}

}  // namespace moesaic
