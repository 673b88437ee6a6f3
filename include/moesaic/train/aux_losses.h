// SPDX-License-Identifier: Apache-2.0
// Losses of the routing, which are added to what a network is trained for.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "moesaic/models/model.h"

namespace moesaic {

/// gshard, importance, load, router_z, switch_balance, and switch_balance_logit, the same with the
/// logit as the proxy; see ops/losses.h.
std::vector<std::string> aux_loss_names();

/// The weights that a phase gives, and the model's own for losses that it does not name.
std::map<std::string, double> aux_loss_weights(const std::map<std::string, double>& phase,
                                               const Model& model);

/// The sum over the MoE layers (as in V-MoE) of the mean over groups of an auxiliary loss, a
/// float32 scalar, 0 without a layer. Layers whose experts choose are balanced: there all but
/// router_z are 0, as is the load loss where no gaussian noise was drawn. Rerouted layers count the
/// experts that are left; members of an ensemble have losses of their own, over their own experts,
/// of which the mean counts. Throws Error (usage) for an unknown name.
at::Tensor aux_loss(const std::string& name, const ModelOutput& output);

}  // namespace moesaic
