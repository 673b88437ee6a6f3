// SPDX-License-Identifier: Apache-2.0
// Auxiliary losses of the routing, which are added to the main loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "moesaic/config/problem.h"
#include "moesaic/models/model.h"
#include "moesaic/train/phase_config.h"

namespace moesaic {

/// Returns gshard, importance, load, router_z, switch_balance, and switch_balance_logit, which is
/// switch_balance with the logit as the proxy; see ops/losses.h.
std::vector<std::string> aux_loss_names();

/// Returns what is wrong with the names of a phase's `aux_losses`.
ConfigProblem aux_losses_problem(const std::map<std::string, double>& phase);

/// Returns the weights of a phase, completed by the model's weights for losses that it omits.
std::map<std::string, double> aux_loss_weights(const std::map<std::string, double>& phase,
                                               const Model& model);

/// Throws Error (usage), with the location of the setting, for a weight above 0 of a loss that
/// would be 0 at every step of the phase. A load loss that the model's own settings weigh is only
/// warned of, since they say that there is none without noise, and they are idle without a MoE
/// layer. Warns of a trained router that gets no gradient, since its gates are 1 and it has no
/// auxiliary loss.
void check_aux_losses(const std::map<std::string, double>& phase, const PhasePlaces& places,
                      const Model& model);

/// Returns the sum over the MoE layers (as in V-MoE) of the mean over groups of an auxiliary loss,
/// a float32 scalar, 0 without a layer. Expert choice is balanced: there all losses except router_z
/// are 0, as is the load loss where no gaussian noise was drawn. Rerouted layers count the kept
/// experts only; for an ensemble the loss is the mean of those of the members, each over its own
/// experts. Throws Error (usage) for an unknown name.
at::Tensor aux_loss(const std::string& name, const ModelOutput& output);

}  // namespace moesaic
