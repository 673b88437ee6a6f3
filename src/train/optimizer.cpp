// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/optimizer.h"

#include <torch/torch.h>

#include "moesaic/base/error.h"

namespace moesaic {

namespace {

class WeightDecays {
 public:
  explicit WeightDecays(const OptimizerConfig& config)
      : values_(config.weight_decays), none_(config.no_decay), of_all_(config.weight_decay) {}

  double of(const std::string& name) const {
    if (!values_.empty()) return values_.value_for(name, 0.0);
    return none_.any_found_in(name) ? 0.0 : of_all_;
  }

 private:
  PatternValues values_;
  Patterns none_;
  double of_all_;
};

}  // namespace

Optimizer::Optimizer(NamedParameters parameters, const OptimizerConfig& config,
                     const std::vector<std::string>& frozen)
    : rule_(make_update_rule(config)) {
  const WeightDecays weight_decays(config);
  const Patterns never(frozen);
  for (auto& [name, parameter] : parameters) {
    Entry entry{name, parameter, {}, weight_decays.of(name), never.any_found_in(name)};
    for (size_t slot = 0; !entry.frozen && slot < rule_->slot_names().size(); ++slot) {
      entry.slots.push_back(at::zeros_like(parameter, at::MemoryFormat::Contiguous));
    }
    weight_decays_.insert(entry.weight_decay);
    entries_.push_back(std::move(entry));
  }
}

void Optimizer::scale_gradients(const PatternValues& factors) {
  if (factors.empty()) return;
  const torch::NoGradGuard no_grad;
  for (const Entry& entry : entries_) {
    const double factor = factors.value_for(entry.name, 1.0);
    if (factor != 1.0 && entry.parameter.grad().defined()) entry.parameter.grad().mul_(factor);
  }
}

void Optimizer::step(double lr) {
  const torch::NoGradGuard no_grad;
  ++updates_;
  for (const double weight_decay : weight_decays_) step_group(weight_decay, lr);
}

void Optimizer::step_group(double weight_decay, double lr) {
  UpdateRule::Group group;
  group.weight_decay = weight_decay;
  group.slots.resize(rule_->slot_names().size());
  for (const Entry& entry : entries_) {
    const at::Tensor gradient = entry.parameter.grad();
    if (entry.frozen || entry.weight_decay != weight_decay) continue;
    group.parameters.push_back(entry.parameter);
    group.gradients.push_back(gradient.defined() ? gradient.contiguous()
                                                 : at::zeros_like(entry.parameter));
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
    for (size_t slot = 0; slot < entry.slots.size(); ++slot) {
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
