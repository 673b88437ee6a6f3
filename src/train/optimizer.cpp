// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/optimizer.h"

#include <torch/csrc/utils/tensor_flatten.h>
#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/parallel/processes.h"

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

/// Returns the numbers of tensors in one row, or memory for them.
at::Tensor flattened(const std::vector<at::Tensor>& tensors, bool filled) {
  if (tensors.empty()) return at::empty({0});
  if (filled) return torch::utils::flatten_dense_tensors(tensors);
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  return at::empty({count}, tensors.front().options().requires_grad(false));
}

}  // namespace

Optimizer::Optimizer(NamedParameters parameters, const OptimizerConfig& config,
                     const std::vector<std::string>& frozen,
                     const std::vector<PartOptimizerConfig>& parts) {
  for (const PartOptimizerConfig& part : parts) {
    add_part(part.optimizer, part.optimizer.lr / config.lr, Patterns(part.parameters), frozen,
             parameters);
  }
  add_part(config, 1.0, Patterns({""}), frozen, parameters);
}

void Optimizer::add_part(const OptimizerConfig& config, double rate, const Patterns& of,
                         const std::vector<std::string>& frozen, NamedParameters& parameters) {
  const WeightDecays weight_decays(config);
  const Patterns never(frozen);
  Part part{make_update_rule(config), rate, config.l2, {}, {}};
  NamedParameters others;
  for (auto& [name, parameter] : parameters) {
    if (!of.any_found_in(name)) {
      others.emplace_back(name, parameter);
      continue;
    }
    Entry entry{name, parameter, {}, weight_decays.of(name), never.any_found_in(name)};
    for (size_t slot = 0; !entry.frozen && slot < part.rule->slot_names().size(); ++slot) {
      entry.slots.push_back(at::zeros_like(parameter, at::MemoryFormat::Contiguous));
    }
    part.weight_decays.insert(entry.weight_decay);
    part.entries.push_back(std::move(entry));
  }
  parameters = std::move(others);
  parts_.push_back(std::move(part));
}

template <class Parts, class Use>
void Optimizer::divide(Parts& parts, int64_t processes, const NameTest& everywhere,
                       const Use& use) {
  std::vector<int64_t> load(static_cast<size_t>(processes), 0);
  for (auto& part : parts) {
    for (auto& entry : part.entries) {
      if (entry.frozen || everywhere(entry.name)) continue;
      const auto least = std::min_element(load.begin(), load.end());
      *least += entry.parameter.numel();
      use(entry, least - load.begin());
    }
  }
}

void Optimizer::share_state(std::shared_ptr<const Processes> processes,
                            const NameTest& everywhere) {
  processes_ = std::move(processes);
  divide(parts_, processes_->size(), everywhere, [&](Entry& entry, int64_t owner) {
    entry.owner = owner;
    if (!is_own(entry)) entry.slots.clear();
  });
}

Optimizer::Share Optimizer::largest_share(int64_t processes, const NameTest& everywhere) const {
  std::vector<Share> shares(static_cast<size_t>(processes));
  Share largest, common;
  const auto add = [](Share& share, const Entry& entry) {
    share.updated += entry.parameter.numel();
    share.state += entry.parameter.numel() * static_cast<int64_t>(entry.slots.size());
  };
  divide(parts_, processes, everywhere, [&](const Entry& entry, int64_t owner) {
    Share& share = shares[static_cast<size_t>(owner)];
    add(share, entry);
    largest = {std::max(largest.state, share.state), std::max(largest.updated, share.updated)};
  });
  for_entries([&](const Entry& entry) {
    if (!entry.frozen && everywhere(entry.name)) add(common, entry);
  });
  return {largest.state + common.state, largest.updated + common.updated};
}

bool Optimizer::is_own(const Entry& entry) const {
  return entry.owner == kEvery || entry.owner == processes_->rank();
}

void Optimizer::spread() const {
  const torch::NoGradGuard no_grad;
  const auto own = static_cast<size_t>(processes_->rank());
  std::vector<std::vector<at::Tensor>> owned(static_cast<size_t>(processes_->size()));
  for_entries([&](const Entry& entry) {
    if (entry.owner != kEvery) owned[static_cast<size_t>(entry.owner)].push_back(entry.parameter);
  });
  std::vector<at::Tensor> flat;  // Of each process, one range.
  for (size_t owner = 0; owner < owned.size(); ++owner) {
    flat.push_back(flattened(owned[owner], /*filled=*/owner == own));
  }
  processes_->world().broadcast_each(flat, Traffic::parameters);
  for (size_t owner = 0; owner < owned.size(); ++owner) {
    if (owner == own || owned[owner].empty()) continue;
    const std::vector<at::Tensor> values =
        torch::utils::unflatten_dense_tensors(flat[owner], owned[owner]);
    for (size_t i = 0; i < values.size(); ++i) owned[owner][i].copy_(values[i]);
  }
}

void Optimizer::scale_gradients(const PatternValues& factors) {
  if (factors.empty()) return;
  const torch::NoGradGuard no_grad;
  for_entries([&](const Entry& entry) {
    const double factor = factors.value_for(entry.name, 1.0);
    if (factor != 1.0 && entry.parameter.grad().defined()) entry.parameter.grad().mul_(factor);
  });
}

void Optimizer::step(double lr, const std::vector<std::optional<double>>& part_lrs,
                     const at::Tensor& skip) {
  const torch::NoGradGuard no_grad;
  ++updates_;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const std::optional<double> own = i < part_lrs.size() ? part_lrs[i] : std::nullopt;
    step_part(parts_[i], own.value_or(lr * parts_[i].rate), skip);
  }
  if (processes_) spread();
}

std::vector<at::Tensor> Optimizer::prepared_gradients(const Part& part) {
  std::vector<std::string> names;
  std::vector<at::Tensor> gradients;
  for (const Entry& entry : part.entries) {
    const at::Tensor gradient = entry.parameter.grad();
    names.push_back(entry.name);
    gradients.push_back(gradient.defined() ? gradient.contiguous()
                                           : at::zeros_like(entry.parameter));
  }
  part.rule->prepare(names, gradients);
  for (size_t i = 0; part.l2 > 0.0 && i < gradients.size(); ++i) {
    gradients[i] = gradients[i].add(part.entries[i].parameter, part.l2);
  }
  return gradients;
}

void Optimizer::step_part(const Part& part, double lr, const at::Tensor& skip) const {
  const std::vector<at::Tensor> gradients = prepared_gradients(part);
  for (const double weight_decay : part.weight_decays) {
    UpdateRule::Group group;
    group.weight_decay = weight_decay;
    group.skip = skip;
    group.slots.resize(part.rule->slot_names().size());
    for (size_t i = 0; i < gradients.size(); ++i) {
      const Entry& entry = part.entries[i];
      if (entry.frozen || entry.weight_decay != weight_decay || !is_own(entry)) continue;
      group.parameters.push_back(entry.parameter);
      group.gradients.push_back(gradients[i]);
      for (size_t slot = 0; slot < group.slots.size(); ++slot) {
        group.slots[slot].push_back(entry.slots[slot]);
      }
    }
    if (!group.parameters.empty()) part.rule->apply(group, lr, updates_);
  }
}

void Optimizer::zero_grad() {
  for_entries([](const Entry& entry) {
    at::Tensor parameter = entry.parameter;
    parameter.mutable_grad().reset();
  });
}

std::vector<at::Tensor> Optimizer::gradients() const {
  std::vector<at::Tensor> list;
  for_entries([&](const Entry& entry) {
    if (entry.parameter.grad().defined()) list.push_back(entry.parameter.grad());
  });
  return list;
}

TensorMap Optimizer::state() const {
  TensorMap map;
  for (const Part& part : parts_) {
    const std::vector<std::string> names = part.rule->slot_names();
    for (const Entry& entry : part.entries) {
      for (size_t slot = 0; slot < entry.slots.size(); ++slot) {
        map[entry.name + "." + names[slot]] = entry.slots[slot];
      }
    }
  }
  return map;
}

bool Optimizer::is_of_others(const std::string& slot) const {
  bool found = false;
  for_entries([&](const Entry& entry) {
    found = found || (!is_own(entry) && slot.starts_with(entry.name + "."));
  });
  return found;
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
    if (!own.contains(name) && !is_of_others(name)) fail("optimizer: unexpected '{}'", name);
  }
  for (const auto& [name, tensor] : own) tensor.copy_(state.at(name));
  updates_ = updates;
}

}  // namespace moesaic
