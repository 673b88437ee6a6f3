// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/classification_loss.h"

#include <torch/torch.h>

#include <cmath>

#include "losses/losses.h"

namespace moesaic {
namespace {

ClassificationLoss of_ensemble(ClassificationLoss loss, const std::string& of_one_network) {
  loss.meaning += ", of each member of an ensemble; evaluated on their mean probabilities";
  loss.of_ensemble = true;
  loss.counterpart = of_one_network;
  return loss;
}

/// Rows of logits that belong to one image.
int64_t members_of(const std::string& name, const at::Tensor& logits, const Targets& targets) {
  const ClassificationLoss& loss = classification_losses().at(name);
  const int64_t images = targets.labels.size(0), rows = logits.size(0);
  const int64_t members = images > 0 ? rows / images : 1;
  if (members < 1 || members * images != rows) {
    fail("loss '{}': {} rows of logits for {} images", name, rows, images);
  }
  if (members > 1 && !loss.of_ensemble) {
    fail_usage("loss '{}' takes one row of logits an image, found {}; choose {}", name, members,
               loss.counterpart);
  }
  return members;
}

at::Tensor by_image(const at::Tensor& logits, int64_t members) {
  return logits.to(at::kFloat).view({-1, members, logits.size(1)});
}

}  // namespace

Registry<ClassificationLoss>& classification_losses() {
  static Registry<ClassificationLoss> registry(
      "loss", {{"softmax", softmax_loss()},
               {"softmax_twice", softmax_twice_loss()},
               {"sigmoid", sigmoid_loss()},
               {"ensemble_softmax", of_ensemble(softmax_loss(), "softmax")},
               {"ensemble_sigmoid", of_ensemble(sigmoid_loss(), "sigmoid")}});
  return registry;
}

at::Tensor dense_targets(const Targets& targets, int64_t classes) {
  const at::Tensor plain = targets.soft_labels.defined()
                               ? targets.soft_labels.to(at::kFloat)
                               : at::one_hot(targets.labels, classes).to(at::kFloat);
  if (targets.smoothing == 0.0) return plain;
  return plain * (1.0 - targets.smoothing) + targets.smoothing / static_cast<double>(classes);
}

at::Tensor log_mean_exp(const at::Tensor& log_BMC) {
  return log_BMC.logsumexp({1}) - std::log(static_cast<double>(log_BMC.size(1)));
}

at::Tensor training_losses(const std::string& name, const at::Tensor& logits,
                           const Targets& targets) {
  const int64_t members = members_of(name, logits, targets);
  Targets of_rows = targets;
  for (at::Tensor* tensor : {&of_rows.labels, &of_rows.soft_labels}) {
    if (members > 1 && tensor->defined()) *tensor = tensor->repeat_interleave(members, 0);
  }
  return classification_losses().at(name).of_rows(logits.to(at::kFloat), of_rows);
}

at::Tensor evaluation_losses(const std::string& name, const at::Tensor& logits,
                             const Targets& targets) {
  const int64_t members = members_of(name, logits, targets);
  if (members == 1) return training_losses(name, logits, targets);
  return classification_losses().at(name).of_mean(by_image(logits, members),
                                                  dense_targets(targets, logits.size(1)));
}

at::Tensor log_mean_probabilities(const std::string& name, const at::Tensor& logits,
                                  int64_t members) {
  const ClassificationLoss& loss = classification_losses().at(name);
  return log_mean_exp(loss.log_probabilities(by_image(logits, members)));
}

}  // namespace moesaic
