// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/main_loss.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/ops/cross_entropy.h"

namespace moesaic {
namespace {

const std::string kEnsemble = "ensemble_", kTwice = "softmax_twice";

bool is_sigmoid(const std::string& name) {
  const std::vector<std::string> names = main_loss_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    fail_usage("unknown loss '{}'; {}", name, did_you_mean(name, names));
  }
  return name == "sigmoid" || name == "ensemble_sigmoid";
}

/// Rows of logits that belong to one image.
int64_t members_of(const std::string& name, const at::Tensor& logits, const Targets& targets) {
  const int64_t images = targets.labels.size(0), rows = logits.size(0);
  const int64_t members = images > 0 ? rows / images : 1;
  if (members < 1 || members * images != rows) {
    fail("loss '{}': {} rows of logits for {} images", name, rows, images);
  }
  if (members > 1 && !is_ensemble_loss(name)) {
    fail_usage("loss '{0}' takes one row of logits an image, found {1}; choose ensemble_{0}", name,
               members);
  }
  return members;
}

at::Tensor smoothed(const at::Tensor& targets, double smoothing) {
  if (smoothing == 0.0) return targets;
  return targets * (1.0 - smoothing) + smoothing / static_cast<double>(targets.size(1));
}

/// [B, classes] float32.
at::Tensor dense_targets(const Targets& targets, int64_t classes) {
  const at::Tensor plain = targets.soft_labels.defined()
                               ? targets.soft_labels.to(at::kFloat)
                               : at::one_hot(targets.labels, classes).to(at::kFloat);
  return smoothed(plain, targets.smoothing);
}

/// log p and log (1 - p) of what is on and off.
at::Tensor binary_cross_entropy(const at::Tensor& log_on, const at::Tensor& log_off,
                                const at::Tensor& targets) {
  return -(targets * log_on + (1.0 - targets) * log_off).sum(1);
}

at::Tensor log_mean_exp(const at::Tensor& log_BMC) {
  return log_BMC.logsumexp({1}) - std::log(static_cast<double>(log_BMC.size(1)));
}

at::Tensor by_image(const at::Tensor& logits, int64_t members) {
  return logits.to(at::kFloat).view({-1, members, logits.size(1)});
}

}  // namespace

std::vector<std::string> main_loss_names() {
  return {"softmax", "sigmoid", kTwice, "ensemble_softmax", "ensemble_sigmoid"};
}

bool is_ensemble_loss(const std::string& name) {
  return name.starts_with(kEnsemble);
}

std::string with_members(const std::string& name) {
  if (is_ensemble_loss(name)) return name;
  return kEnsemble + (name == kTwice ? "softmax" : name);
}

std::string of_one_network(const std::string& name) {
  return is_ensemble_loss(name) ? name.substr(kEnsemble.size()) : name;
}

at::Tensor training_losses(const std::string& name, const at::Tensor& logits,
                           const Targets& targets) {
  const bool sigmoid = is_sigmoid(name);
  const int64_t members = members_of(name, logits, targets);
  const at::Tensor rows = logits.to(at::kFloat);
  const auto repeated = [&](const at::Tensor& tensor) {
    return members == 1 ? tensor : tensor.repeat_interleave(members, 0);
  };
  if (!sigmoid && !targets.soft_labels.defined() && targets.smoothing == 0.0) {
    return cross_entropy(rows, repeated(targets.labels), name == kTwice);
  }
  if (!sigmoid) {
    const at::Tensor& wanted = targets.soft_labels.defined() ? targets.soft_labels : targets.labels;
    return at::cross_entropy_loss(name == kTwice ? rows.softmax(1) : rows, repeated(wanted), {},
                                  at::Reduction::None, -100, targets.smoothing);
  }
  return binary_cross_entropy(at::log_sigmoid(rows), at::log_sigmoid(-rows),
                              repeated(dense_targets(targets, rows.size(1))));
}

at::Tensor evaluation_losses(const std::string& name, const at::Tensor& logits,
                             const Targets& targets) {
  const int64_t members = members_of(name, logits, targets);
  if (members == 1) return training_losses(name, logits, targets);
  const at::Tensor wanted = dense_targets(targets, logits.size(1));
  const at::Tensor log_on = log_mean_probabilities(name, logits, members);
  if (!is_sigmoid(name)) return -(wanted * log_on).sum(1);
  return binary_cross_entropy(log_on, log_mean_probabilities(name, -logits, members), wanted);
}

at::Tensor log_mean_probabilities(const std::string& name, const at::Tensor& logits,
                                  int64_t members) {
  const at::Tensor logits_BMC = by_image(logits, members);
  return log_mean_exp(is_sigmoid(name) ? at::log_sigmoid(logits_BMC) : logits_BMC.log_softmax(2));
}

}  // namespace moesaic
