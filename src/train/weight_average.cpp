// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/weight_average.h"

#include <torch/torch.h>

#include "moesaic/base/error.h"

namespace moesaic {

WeightAverage::WeightAverage(const Model& model, double decay) : decay_(decay) {
  if (decay == 0.0) return;
  const auto add = [&](const std::string& name, const at::Tensor& weight) {
    names_.push_back(name + ".ema");
    weights_.push_back(weight.detach());
    averages_.push_back(weight.detach().clone());
  };
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad()) add(item.key(), item.value());
  }
  for (const auto& item : model.named_buffers()) {
    if (item.value().defined() && item.value().is_floating_point()) add(item.key(), item.value());
  }
}

void WeightAverage::update() {
  if (!names_.empty()) at::_foreach_lerp_(averages_, weights_, 1.0 - decay_);
}

void WeightAverage::swap() {
  for (size_t i = 0; i < names_.size(); ++i) {
    const at::Tensor average = averages_[i].clone();
    averages_[i].copy_(weights_[i]);
    weights_[i].copy_(average);
  }
}

void WeightAverage::apply() const {
  for (size_t i = 0; i < names_.size(); ++i) weights_[i].copy_(averages_[i]);
}

void WeightAverage::save(TensorMap& tensors) const {
  for (size_t i = 0; i < names_.size(); ++i) tensors[names_[i]] = averages_[i];
}

void WeightAverage::load(TensorMap& tensors) {
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto saved = tensors.extract(names_[i]);
    if (saved.empty()) fail("average: '{}' is missing", names_[i]);
    if (saved.mapped().sizes() != averages_[i].sizes()) {
      fail("average: '{}' must have the shape {}, found {}", names_[i],
           c10::str(averages_[i].sizes()), c10::str(saved.mapped().sizes()));
    }
    averages_[i].copy_(saved.mapped());
  }
}

}  // namespace moesaic
