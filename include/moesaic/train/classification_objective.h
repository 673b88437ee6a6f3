// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "moesaic/train/classification_loss.h"
#include "moesaic/train/objective.h"

namespace moesaic {

struct ClassificationObjectiveConfig {
  double label_smoothing = 0.0;
  std::map<std::string, double> aux_losses;  ///< Weight of each, see aux_loss_names().
};
template <class Fields>
void describe(Fields& f, ClassificationObjectiveConfig& c) {
  f("label_smoothing", c.label_smoothing, "fraction of the target spread over all classes",
    at_least(0.0), below(1.0));
  f("aux_losses", c.aux_losses,
    "weights of auxiliary losses: gshard, importance, load, router_z, switch_balance, "
    "switch_balance_logit",
    at_least(0.0));
}
ConfigProblem config_problem(const ClassificationObjectiveConfig& config);

/// Returns loss = cross entropy + sum of weight * auxiliary loss, where the cross entropy is the
/// mean of training_losses(loss) over the rows of logits [B members, classes] and `config` gives
/// the weights. Terms: "accuracy" in % over all rows, "cross_entropy", and each auxiliary loss.
LossTerms classification_terms(const std::string& loss, const ClassificationObjectiveConfig& config,
                               const ModelOutput& output, const at::Tensor& labels,
                               const at::Tensor& soft_labels = {});

}  // namespace moesaic
