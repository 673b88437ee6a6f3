// SPDX-License-Identifier: Apache-2.0
// Data of the pruning paper's theory: tokens that are patterns of an orthonormal set.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "moesaic/data/pattern_tokens_config.h"

namespace moesaic {

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
