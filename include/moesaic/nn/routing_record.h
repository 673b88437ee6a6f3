// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "moesaic/ops/routing.h"

namespace moesaic::nn {

/// What a router decided for a batch, and everything that losses, statistics and pruning want to
/// know about it. The router fills it; a model adds the number of the block.
struct RoutingRecord {
  int64_t block = 0;           ///< index of the block that holds the layer
  at::Tensor logits_TE;        ///< [T, E], differentiable, without noise; -infinity for the experts
                               ///< of other members than the token's
  at::Tensor noisy_logits_TE;  ///< [T, E], those that decided; the same tensor without noise
  double noise_std = 0.0;      ///< of gaussian noise that was drawn; 0 without
  Routing routing;
  std::vector<int64_t> kept;  ///< ids of the experts that the routing's rows 0..K-1 stand for
  bool reroutes = false;      ///< the router sees these alone, see PrunedSelection
  int64_t group_size = 0;     ///< tokens that were routed together; 0: all
  int64_t members = 1;        ///< of an ensemble: token t is of member t % members
};

}  // namespace moesaic::nn
