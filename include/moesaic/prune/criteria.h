// SPDX-License-Identifier: Apache-2.0
// Importance scores of experts; the experts with the highest scores are kept.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/models/model.h"

namespace moesaic {

/// Returns the names of the criteria:
///
///   router-norm-change  ||w_s fine-tuned|| - ||w_s pre-trained||, signed (paper, sec. 3.2)
///   router-magnitude    ||w_s|| (sec. 5, II)
///   neuron-magnitude    mean over the expert's neurons of the norm of their incoming weights, of
///                       MLPs ||w1[s, :, r]||: the average neuron magnitude (sec. 5, III), see
///                       nn::Experts::neuron_magnitudes()
///   magnitude           alias of neuron-magnitude
///   random              uniform on [0, 1), a function of seed, block and expert only
///
/// The paper is the pruning paper; w_s is row s of the layer's router. Norms are Euclidean and
/// accumulated in float64.
std::vector<std::string> criterion_names();

/// Returns whether the criterion compares with a pre-trained network. Throws Error (usage) with the
/// nearest name for an unknown criterion.
bool criterion_needs_pretrained(const std::string& criterion);

/// Returns the scores [E] of the experts of one layer, including pruned ones; an expert whose
/// weights were removed has neuron magnitude 0. `pretrained` may be null if the criterion does not
/// need it. Throws Error (usage) for an unknown criterion or a missing pre-trained layer, Error
/// with the block and both shapes if the routers differ.
std::vector<double> expert_scores(const std::string& criterion, const MoEBlock& finetuned,
                                  const MoEBlock* pretrained, uint64_t seed);

}  // namespace moesaic
