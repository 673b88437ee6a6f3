// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/ops/routing.h"

namespace moesaic {

/// Options of adaptive routing; route_token_choice.h describes how to add an option.
struct AdaptiveOptions {
  double threshold = 0.0;          ///< Smallest logit with which an expert takes a token.
  std::vector<int64_t> kept = {};  ///< Ids of the computed experts, ascending; empty: all.
};

/// Routes by adaptive top-k (latent paper, sections 3.1 and 3.3): a token goes to every expert
/// whose logit is at least `threshold`, possibly to none, with gate 1. Nothing is differentiable.
///
/// logits_TE: [T, E] of any floating type; bfloat16 and float16 are converted to float32, in
/// which the gates are. Rows of an expert are in token order, a token's rows in
/// the order of experts; `choice` is [T, 0]. Throws Error for wrong shapes, a bad `kept` or NaN; on
/// a GPU, logits of NaN pass with a gate of NaN.
Routing route_adaptive(const at::Tensor& logits_TE, const AdaptiveOptions& options = {});

}  // namespace moesaic
