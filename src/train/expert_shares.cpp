// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/expert_shares.h"
#include "moesaic/parallel/processes.h"

#include <torch/torch.h>

#include <algorithm>

namespace moesaic {

void share_experts(Model& model, const std::shared_ptr<const Processes>& processes) {
  for (const MoEBlock& block : model.moe_blocks()) block.layer.ptr()->share_experts(processes);
}

void gather_experts(Model& model) {
  const torch::NoGradGuard no_grad;
  for (const MoEBlock& block : model.moe_blocks()) {
    nn::MoELayerImpl& layer = *block.layer.ptr();
    const auto& processes = layer.shares_experts();
    if (!processes) continue;
    const auto gather = [&](at::Tensor tensor) {
      tensor.mutable_grad() = at::Tensor();
      tensor.set_data(processes->experts().all_gather(tensor.detach(), Traffic::other));
    };
    for (const at::Tensor& tensor : layer.experts->parameters()) gather(tensor);
    for (const at::Tensor& tensor : layer.experts->buffers()) gather(tensor);
    layer.end_sharing_experts();
  }
}

ExpertShares::ExpertShares(const Model& model) {
  std::vector<const torch::nn::Module*> shared;
  for (const MoEBlock& block : model.moe_blocks()) {
    if (!block.layer->shares_experts()) continue;
    processes_ = block.layer->shares_experts();
    shared.push_back(block.layer->experts.get());
  }
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (std::find(shared.begin(), shared.end(), item.value().get()) != shared.end()) {
      prefixes_.push_back(item.key() + ".");
    }
  }
}

bool ExpertShares::has(const std::string& name) const {
  return std::any_of(prefixes_.begin(), prefixes_.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
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
  for (auto& [name, tensor] : tensors) {
    if (!has(name)) continue;
    const int64_t rows = tensor.size(0) / processes_->experts().size();
    tensor = tensor.narrow(0, processes_->experts().rank() * rows, rows);
  }
  return tensors;
}

}  // namespace moesaic
