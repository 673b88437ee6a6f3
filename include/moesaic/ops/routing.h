// SPDX-License-Identifier: Apache-2.0
// What every router yields: a sparse matrix of experts x tokens. The letters of all shapes are
//   T tokens, E experts with a router row, K experts that are computed (K < E once experts are
//   pruned), k choices of a token, A rows of the buffer (a static bound; `offsets` says how many
//   are real), d width of a token, m hidden width of an expert.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace moesaic {

/// One routing in compressed sparse row form, with its transpose. Index tensors are int32.
/// Row r of expert e (offsets[e] <= r < offsets[e + 1]) is token `token[r]`, weighted with
/// `gate[r]`. Rows of one expert are in token order. Rows from offsets[K] on are unused: their
/// token and gate are 0.
struct Routing {
  at::Tensor offsets;  ///< [K + 1]: where each expert's rows begin
  at::Tensor token;    ///< [A]: the token of each row
  at::Tensor
      gate;  ///< [A]: the weight of each row, of the logits' dtype, differentiable through them
  at::Tensor token_offsets;  ///< [T + 1]: where each token's rows begin in `token_row`
  at::Tensor token_row;      ///< [A]: the rows that each token combines, best choice first where
                             ///< tokens choose, else in the order of experts
  at::Tensor choice;  ///< [T, k]: the experts that each token selected, drops included, best first;
                      ///< [T, 0] where tokens do not rank experts

  int64_t tokens() const { return token_offsets.size(0) - 1; }
  int64_t experts() const { return offsets.size(0) - 1; }
  int64_t row_bound() const { return token.size(0); }
};

/// The expert that computes each row of the buffer: [A] int64; K for unused rows.
at::Tensor row_experts(const Routing& routing);

/// The weight with which each expert's output is added to each token: [T, K], 0 where not routed.
/// Columns of a pruned layer are its kept experts, in the order of their ids.
at::Tensor combine_weights(const Routing& routing);

}  // namespace moesaic
