// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/optimizer.h"

#include <torch/torch.h>

#include "moesaic/base/error.h"

namespace moesaic {

Optimizer::Optimizer(NamedParameters parameters, const OptimizerConfig& config)
    : rule_(make_update_rule(config)), weight_decay_(config.weight_decay) {
  for (auto& [name, parameter] : parameters) {
    Entry entry{name, parameter, {}, !matches_any(name, config.no_decay)};
    for (size_t slot = 0; slot < rule_->slot_names().size(); ++slot) {
      entry.slots.push_back(at::zeros_like(parameter, at::MemoryFormat::Contiguous));
    }
    entries_.push_back(std::move(entry));
  }
}

void Optimizer::step(double lr) {
  const torch::NoGradGuard no_grad;
  ++updates_;
  step_group(true, lr);
  step_group(false, lr);
}

void Optimizer::step_group(bool decays, double lr) {
  UpdateRule::Group group;
  group.weight_decay = decays ? weight_decay_ : 0.0;
  group.slots.resize(rule_->slot_names().size());
  for (const Entry& entry : entries_) {
    const at::Tensor gradient = entry.parameter.grad();
    if (entry.decays != decays || !gradient.defined()) continue;
    group.parameters.push_back(entry.parameter);
    group.gradients.push_back(gradient.contiguous());
    for (size_t slot = 0; slot < group.slots.size(); ++slot) {
      group.slots[slot].push_back(entry.slots[slot]);
    }
  }
  if (!group.parameters.empty()) rule_->apply(group, lr, updates_);
}

void Optimizer::zero_grad() {
  for (Entry& entry : entries_) entry.parameter.mutable_grad().reset();
}

std::vector<at::Tensor> Optimizer::gradients() const {
  std::vector<at::Tensor> list;
  for (const Entry& entry : entries_) {
    if (entry.parameter.grad().defined()) list.push_back(entry.parameter.grad());
  }
  return list;
}

TensorMap Optimizer::state() const {
  TensorMap map;
  const std::vector<std::string> names = rule_->slot_names();
  for (const Entry& entry : entries_) {
    for (size_t slot = 0; slot < names.size(); ++slot) {
      map[entry.name + "." + names[slot]] = entry.slots[slot];
    }
  }
  return map;
}

void Optimizer::load_state(const TensorMap& state, int64_t updates) {
  const TensorMap own = this->state();
  for (const auto& [name, tensor] : own) {
    const auto found = state.find(name);
    if (found == state.end()) fail("optimizer: '{}' is missing", name);
    if (found->second.sizes() != tensor.sizes()) {
      fail("optimizer: '{}' must have the shape {}, found {}", name, c10::str(tensor.sizes()),
           c10::str(found->second.sizes()));
    }
  }
  for (const auto& [name, unused] : state) {
    if (!own.contains(name)) fail("optimizer: unexpected '{}'", name);
  }
  for (const auto& [name, tensor] : own) tensor.copy_(state.at(name));
  updates_ = updates;
}

}  // namespace moesaic
