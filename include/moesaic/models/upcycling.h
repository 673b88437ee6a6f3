// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/models/router_config.h"

namespace moesaic {

/// Sparse upcycling (Komatsuzaki et al., arXiv:2212.05055): the MLPs of some blocks become mixtures
/// of experts that begin as copies of them. The gates of a token's experts sum to 1 and no token is
/// dropped, so that the network begins with the outputs of the dense one.
struct Upcycling {
  int64_t num_experts = 0;           ///< 0: the network stays dense.
  std::vector<int64_t> layers = {};  ///< Blocks with experts, from 0.
  int64_t num_selected_experts = 2;  ///< Experts for each token, k.
  /// Standard deviation of normal noise on the experts' weights, relative to that of each weight
  /// tensor; 0: the experts begin equal.
  double noise = 0.0;
};
void describe(auto& f, Upcycling& c) {
  f("num_experts", c.num_experts, "number of experts per layer", required, between(1, kMaxExperts));
  f("layers", c.layers, "indices of the blocks (from 0) whose MLP becomes a mixture of experts",
    required, not_empty, at_least(0));
  f("num_selected_experts", c.num_selected_experts,
    "number of experts per token (top-k); with 1 each gate is 1, and auxiliary losses alone train "
    "the router",
    between(1, kMaxExperts));
  f("noise", c.noise,
    "standard deviation of normal noise on the experts' weights, relative to the standard "
    "deviation "
    "of each weight tensor; 0: experts begin equal and differ by their gates alone",
    at_least(0.0));
}

}  // namespace moesaic
