// SPDX-License-Identifier: Apache-2.0
// Data of the pruning paper's theory: tokens that are patterns of an orthonormal set.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "moesaic/config/schema.h"

namespace moesaic {

/// Data of the pruning paper's theory, section 4.2.
struct PatternTokensConfig {
  static constexpr const char* kKey = "tokens";  ///< Of a description.
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

/// Tokens as numbers of patterns: 0 is o_1, 1 is o_2, the others do not tell the class.
struct PatternTokens {
  at::Tensor tokens_Nn;  ///< float32
  at::Tensor label_N;    ///< int64: 0 with o_1 (y = +1), 1 with o_2 (y = -1).
};

/// Generates examples `first` to `first + count - 1` of a split: the class and the place of its
/// pattern are uniform, and so is each other token among the d - 2 other patterns. Example i
/// depends on seed, split and i only.
PatternTokens pattern_tokens(const PatternTokensConfig& config, const std::string& split,
                             int64_t first, int64_t count);

}  // namespace moesaic
