// SPDX-License-Identifier: Apache-2.0
// Parts of a mixture-of-experts layer in Python's dialect where experts have a capacity, and no
// size depends on values: an expert has a row for every token that it may get, and those that it
// did not get weigh 0.
#pragma once

#include <cstdint>
#include <string>

#include "moesaic/nn/moe_layer.h"

namespace moesaic::script {

/// Returns has_room(choice [T, k], gate [T, k]) -> bool [T, k], and what it calls. Places in an
/// expert's queue are counted; capacities are computed in float64 tensors, as expert_capacity()
/// computes them, since a size cannot be rounded.
std::string static_room(const RouteOptions& rule, int64_t experts);

/// Returns choose(logits [1, T, E]) -> [1, T, E] where the capacity follows from T.
std::string static_choice(const RouteOptions& rule, const std::string& score, int64_t experts);

/// Returns select(logits [T, E]) -> [token [K, R], gate [K, R]], the tokens of experts that choose
/// a number R that follows from the settings. `kept` selects K of the scores [G, E, S].
std::string static_selection(const RouteOptions& rule, const std::string& kept, int64_t experts);

/// Returns forward(), which computes the rows of select(`logits`) and no others.
std::string selected_forward(const nn::ExpertsScript& experts, int64_t count,
                             const std::string& logits, const std::string& rounded);

/// Returns room(tokens), at least the rows of an expert; "" of experts that may get all tokens and
/// are no recorded networks, of which torch.export and ONNX take as many rows as there are.
std::string room_of_expert(const nn::MoELayerImpl& layer);

/// Returns the end of of_experts(), which computes `room` rows of each expert.
std::string static_rows(const nn::ExpertsScript& experts, int64_t count,
                        const std::string& rounded);

}  // namespace moesaic::script
