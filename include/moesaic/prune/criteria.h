// SPDX-License-Identifier: Apache-2.0
// How much an expert matters: one number each, and the higher stays.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/models/model.h"

namespace moesaic {

/// What can be asked for by name:
///
///   router-norm-change  ||w_s fine-tuned|| - ||w_s pre-trained||, signed (paper, sec. 3.2)
///   router-magnitude    ||w_s|| (sec. 5, II)
///   neuron-magnitude    mean over the expert's neurons of the norm of their incoming weights, of
///                       MLPs ||w1[s, :, r]||: the average neuron magnitude (sec. 5, III), see
///                       nn::Experts::neuron_magnitudes()
///   magnitude           another name of neuron-magnitude
///   random              uniform on [0, 1), from the seed, the block and the expert only
///
/// The paper is the pruning one; w_s is row s of the layer's router. Norms are Euclidean, and sums
/// run in float64.
std::vector<std::string> criterion_names();

/// Throws Error (usage) with the nearest name for an unknown one.
bool criterion_needs_pretrained(const std::string& criterion);

/// Scores of the E experts of one layer, pruned ones included; an expert whose weights are gone has
/// the neuron magnitude 0. `pretrained` may be null where the criterion does not need it. Throws
/// Error (usage) for an unknown criterion or a missing pre-trained layer, Error that names the
/// block and both shapes where the routers differ.
std::vector<double> expert_scores(const std::string& criterion, const MoEBlock& finetuned,
                                  const MoEBlock* pretrained, uint64_t seed);

}  // namespace moesaic
