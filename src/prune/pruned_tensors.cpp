// SPDX-License-Identifier: Apache-2.0
#include "pruned_tensors.h"

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <set>

namespace moesaic {
namespace {

const void* identity(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl();
}

/// Calls `add` with name and handle of each parameter and buffer.
template <class Add>
void for_each_tensor(const Model& model, Add add) {
  for (const auto& item : model.named_parameters()) add(item.key(), item.value());
  for (const auto& item : model.named_buffers()) add(item.key(), item.value());
}

}  // namespace

PrunedTensors::PrunedTensors(const Model& shape, const TensorMap& values, const PrunePlan& plan)
    : values_(values), plan_(plan) {
  for_each_tensor(shape, [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) names_[identity(tensor)] = name;
  });
  for (const MoEBlock& block : shape.moe_blocks()) {
    const at::Tensor& stand_in = block.layer->stand_in;
    before_[block.block] = {block.layer->kept(), block.layer->removed(),
                            stand_in.defined() ? names_.at(identity(stand_in)) : ""};
  }
}

std::map<std::string, PrunedTensors::Source> PrunedTensors::sources(const Model& pruned) const {
  std::map<std::string, Source> sources;
  for_each_tensor(pruned, [&](const std::string& name, const at::Tensor& tensor) {
    const auto found = names_.find(identity(tensor));
    sources[name] = {found == names_.end() ? "" : found->second, tensor};
  });
  for (const MoEBlock& block : pruned.moe_blocks()) {
    std::set<const void*> own;
    for (const auto& tensors :
         {block.layer->experts->parameters(), block.layer->experts->buffers()}) {
      for (const at::Tensor& tensor : tensors) own.insert(identity(tensor));
    }
    for (auto& [name, source] : sources) {
      const bool stands_in = block.layer->stand_in.defined() &&
                             identity(source.shape) == identity(block.layer->stand_in);
      if (!stands_in && !own.contains(identity(source.shape))) continue;
      source.block = block.block;
      source.stands_in = stands_in;
    }
  }
  return sources;
}

std::function<at::Tensor(const std::string&)> PrunedTensors::maker(const Model& pruned) const {
  return [this, all = sources(pruned)](const std::string& name) { return make(all.at(name)); };
}

at::Tensor PrunedTensors::make(const Source& source) const {
  if (source.stands_in) return stand_in(source);
  const at::Tensor& value = values_.at(source.name);
  if (value.sizes() == source.shape.sizes()) return value;
  const std::vector<int64_t>& present = before_.at(source.block).kept;
  std::vector<int64_t> slots;
  for (const int64_t id : layer(source.block).kept) {
    slots.push_back(std::lower_bound(present.begin(), present.end(), id) - present.begin());
  }
  return value.index_select(0, at::tensor(slots, at::kLong));
}

const PruneLayerPlan& PrunedTensors::layer(int64_t block) const {
  return *std::find_if(plan_.layers.begin(), plan_.layers.end(),
                       [&](const PruneLayerPlan& layer) { return layer.block == block; });
}

at::Tensor PrunedTensors::stand_in(const Source& source) const {
  const Before& before = before_.at(source.block);
  const at::Tensor old = before.stand_in.empty() ? at::Tensor() : values_.at(before.stand_in);
  if (old.defined() && old.sizes() == source.shape.sizes()) return old;
  const PruneLayerPlan& own = layer(source.block);
  return nn::merged_stand_ins(own.means_Eo, before.removed, old, own.kept)
      .to(source.shape.scalar_type());
}

}  // namespace moesaic
