// SPDX-License-Identifier: Apache-2.0
// Parts of the TorchScript form of a mixture-of-experts layer, a file each.
#pragma once

#include <string>

#include "moesaic/nn/router.h"
#include "moesaic/nn/script.h"

namespace moesaic::script {

/// forward(x [T, d]) -> logits [T, E]
Module make_router(const Unit& unit, const nn::RouterImpl& from);

/// Returns combine_weights(logits [T, E]) -> [T, K], and what it calls: the gates of the experts to
/// which a token is routed, 0 elsewhere. Where pruned experts are selected, removed_weights(logits)
/// -> [T, E - K] are theirs.
std::string weights_source(const nn::RoutingRule& rule, int64_t experts);

}  // namespace moesaic::script
