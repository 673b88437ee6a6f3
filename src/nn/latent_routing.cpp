// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/latent_routing.h"

namespace moesaic::nn {

RouterOptions latent_router_options(int64_t width, int64_t experts, const std::string& routing,
                                    const std::vector<int64_t>& kept) {
  // Noise breaks ties. It is far below the spread of logits that differ, so that few samples have
  // another order because of it.
  constexpr double kTies = 1e-6;
  RouterOptions options;
  options.width = width;
  options.experts = experts;
  if (routing == kTopOne) {
    options.rule = TokenChoiceOptions{
        .k = 1, .gate = Gate::softmax_all, .kept = kept, .pruned = PrunedSelection::reroute};
    options.noise = {NoiseKind::uniform, kTies};
    options.evaluation_seed = 0;
    options.gate_noise = false;
  } else {
    options.rule = AdaptiveOptions{.threshold = 0.0, .kept = kept};
  }
  return options;
}

std::string latent_routing(const RouterOptions& options) {
  return std::holds_alternative<TokenChoiceOptions>(options.rule) ? kTopOne : kEveryAboveZero;
}

}  // namespace moesaic::nn
