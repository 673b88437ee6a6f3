// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moesaic/ops/routing.h"

namespace moesaic {

/// Over which experts the softmax that gives the gates runs.
enum class GateSoftmax {
  selected,  ///< over the k selected: gates of a token sum to 1 (pruning paper, eq. 3)
  all,  ///< over all E, then the top k (released V-MoE): gates of the selected sum to less than 1
};

/// Options of token-choice routing.
struct TokenChoiceOptions {
  int64_t k = 2;                           ///< experts that a token selects
  GateSoftmax softmax = GateSoftmax::all;  ///< how gates are normalised
  double capacity_factor = 0.0;            ///< 0: dropless; else see expert_capacity()
  int64_t group_size = 0;                  ///< tokens that share a capacity; 0: all of the call
  std::vector<int64_t> kept = {};          ///< experts that are computed, ascending; empty: all
};

/// Rows that an expert takes per group: ceil(tokens * k * factor / experts), raised to a multiple
/// of 4 (V-MoE). Throws Error where the value before raising is below 1.
int64_t expert_capacity(int64_t tokens, int64_t k, double factor, int64_t experts);

/// Token-choice top-k routing (pruning paper, eqs. 1-3 and, with `kept`, eqs. 5-6).
///
/// logits_TE: [T, E] float32 or float64. Ties go to the lower expert. With a capacity, all first
/// choices of a group queue before its second choices, each rank in token order, and what finds its
/// expert full is dropped. Experts that are not kept stay in the selection and in the softmax, so
/// that the others' gates do not change, but get no rows. Deterministic. Throws Error for wrong
/// shapes, k > E, NaN logits, or a bad `kept`.
Routing route_token_choice(const at::Tensor& logits_TE, const TokenChoiceOptions& options);

}  // namespace moesaic
