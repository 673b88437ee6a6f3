// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/models/model.h"

namespace moesaic {

struct ObjectiveOptions {
  double label_smoothing = 0.0;
  std::map<std::string, double> aux_losses;  ///< weight of each, see aux_loss_names()
  std::string loss = "softmax";              ///< see main_loss.h
};

/// What is minimised, and what it is made of: float32 scalars on the network's device.
struct Objective {
  at::Tensor loss;
  std::vector<std::pair<std::string, at::Tensor>> terms;  ///< unweighted
};

/// gshard, importance, load, router_z, switch_balance, and switch_balance_logit, the same with the
/// logit as the proxy; see ops/losses.h.
std::vector<std::string> aux_loss_names();

/// The weights that a phase gives, and the model's own for losses that it does not name.
std::map<std::string, double> aux_loss_weights(const std::map<std::string, double>& phase,
                                               const Model& model);

/// loss = cross entropy + sum of weight * auxiliary loss. The cross entropy is the mean over the
/// rows of logits of training_losses(); an auxiliary loss is the sum over the MoE layers (as in
/// V-MoE) of the mean over groups, 0 without one. Layers whose experts choose are balanced: there
/// all but router_z are 0, as is the load loss where no gaussian noise was drawn. Rerouted layers
/// count the experts that are left; members of an ensemble have losses of their own, over their own
/// experts, of which the mean counts. logits [B members, classes], labels [B] int64, in whose place
/// `soft_labels` [B, classes] stand where they are defined.
Objective compute_objective(const ModelOutput& output, const at::Tensor& labels,
                            const ObjectiveOptions& options, const at::Tensor& soft_labels = {});

}  // namespace moesaic
