// SPDX-License-Identifier: Apache-2.0
// How experts of the pruning paper's theory treat the pattern that tells an example's class.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "moesaic/data/dataset.h"
#include "moesaic/models/model.h"

namespace moesaic {

/// Gates of the one token of each of N examples that has the pattern of its class, o_1 or o_2, by
/// the K experts that a network has.
struct OwnPatternGates {
  at::Tensor gate_NK;    ///< G_j^(s)(x), float32; 0 where the expert does not select the token.
  at::Tensor label_N;    ///< int64, 0 with o_1.
  int64_t selected = 1;  ///< l

  /// Returns [2, K] float64: p_1 and p_2, the fractions of each class's examples in which an
  /// expert selects the token with a gate of at least 1 / l (section 4.2).
  at::Tensor proficiency() const;
  /// Returns [2, K]: means of values_NK (float64) over the examples of each class.
  at::Tensor class_means(const at::Tensor& values_NK) const;
};

/// Computes them for a pattern-moe on a split of its data.
OwnPatternGates own_pattern_gates(Model& model, const std::shared_ptr<const Dataset>& data);

}  // namespace moesaic
