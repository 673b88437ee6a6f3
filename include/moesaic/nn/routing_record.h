// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "moesaic/ops/routing.h"

namespace moesaic::nn {

/// The decisions of a router for a batch, with everything that losses, statistics and pruning need.
/// The router fills it; a model adds the index of the block.
struct RoutingRecord {
  int64_t block = 0;           ///< Index of the block that holds the layer.
  at::Tensor logits_TE;        ///< Logits [T, E], differentiable, without noise; -infinity for
                               ///< experts of other members than the token's.
  at::Tensor noisy_logits_TE;  ///< Logits [T, E] that decided; logits_TE without noise.
  double noise_std = 0.0;      ///< Standard deviation of the gaussian noise drawn; 0 without.
  Routing routing;
  std::vector<int64_t> kept;  ///< Ids of the experts 0..K-1 of the routing.
  bool reroutes = false;      ///< Only kept experts are selected, see PrunedSelection.
  int64_t group_size = 0;     ///< Tokens that were routed together; 0 means all.
  int64_t members = 1;        ///< Members of an ensemble; token t is of member t % members.
  bool of_part = false;       ///< Of several processes' parts of a batch it has this one's alone.
};

}  // namespace moesaic::nn
