// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/expert_shares.h"
#include "moesaic/parallel/processes.h"

#include <torch/torch.h>

#include <algorithm>
#include <set>

namespace moesaic {
namespace {

bool starts_with_any(const std::string& name, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

}  // namespace

bool trains_experts_alike(const Model& model, const Patterns& trains) {
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    const auto* const experts = dynamic_cast<const nn::Experts*>(item.value().get());
    if (experts == nullptr || !experts->names_experts()) continue;
    std::set<std::vector<std::string>> trained;  // Names within an expert; one list if alike.
    for (const auto& child : experts->named_children()) {
      std::vector<std::string> names;
      for (const auto& parameter : child.value()->named_parameters()) {
        const std::string name = item.key() + "." + child.key() + "." + parameter.key();
        if (trains.any_found_in(name)) names.push_back(parameter.key());
      }
      trained.insert(names);
    }
    if (trained.size() > 1) return false;
  }
  return true;
}

void share_experts(Model& model, const std::shared_ptr<const Processes>& processes) {
  for (const MoEBlock& block : model.moe_blocks()) block.layer.ptr()->share_experts(processes);
}

void gather_experts(Model& model) {
  for (const MoEBlock& block : model.moe_blocks()) block.layer.ptr()->gather_experts();
}

ExpertShares::ExpertShares(const Model& model) {
  std::set<const torch::nn::Module*> shared;
  for (const MoEBlock& block : model.moe_blocks()) {
    if (!block.layer->shares_experts()) continue;
    processes_ = block.layer->shares_experts();
    shared.insert(block.layer->experts.get());
  }
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (!shared.contains(item.value().get())) continue;
    const auto& experts = dynamic_cast<const nn::Experts&>(*item.value());
    const std::string prefix = item.key() + ".";
    (experts.names_experts() ? named_ : stacked_).push_back(prefix);
    if (!experts.names_experts()) continue;
    for (const auto& child : experts.named_children()) own_.push_back(prefix + child.key() + ".");
  }
}

bool ExpertShares::has(const std::string& name) const {
  return starts_with_any(name, stacked_) || starts_with_any(name, named_);
}

CheckpointPart ExpertShares::part(const CheckpointPart& all, const Processes& processes,
                                  bool optimizer_is_shared) const {
  const bool is_first_replica = processes.replicas().rank() == 0;
  const int64_t place = processes.experts().rank();
  CheckpointPart part;
  const auto add = [&](const TensorMap& from, TensorMap& to, bool others) {
    for (const auto& [name, tensor] : from) {
      if (!has(name)) {
        if (others) to[name] = tensor;
      } else if (is_first_replica && starts_with_any(name, own_)) {
        to[name] = tensor;
      } else if (is_first_replica) {
        const int64_t rows = tensor.size(0);
        to[slice_name({name, place * rows, (place + 1) * rows})] = tensor;
      }
    }
  };
  add(all.model, part.model, processes.leads());
  add(all.optimizer, part.optimizer, processes.leads() || optimizer_is_shared);
  return part;
}

TensorMap ExpertShares::own(TensorMap tensors) const {
  std::erase_if(tensors, [&](const auto& item) {
    return starts_with_any(item.first, named_) && !starts_with_any(item.first, own_);
  });
  for (auto& [name, tensor] : tensors) {
    if (!starts_with_any(name, stacked_)) continue;
    const int64_t rows = tensor.size(0) / processes_->experts().size();
    tensor = tensor.narrow(0, processes_->experts().rank() * rows, rows);
  }
  return tensors;
}

}  // namespace moesaic
