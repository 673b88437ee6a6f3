// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/vmoe/arrays.h"

#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

using vmoe_checkpoint::Entry;

}  // namespace

const Entry* VMoEArrays::find(std::string_view name) const {
  const auto found = std::ranges::find(entries(), name, &Entry::name);
  return found == entries().end() ? nullptr : &*found;
}

VMoEStateArrays::VMoEStateArrays(const VMoEConfig& config, TensorMap state, std::string from)
    : config_(config),
      state_(std::move(state)),
      from_(std::move(from)),
      tensors_(vmoe_tensors(config)) {
  if (config_.encoder.moe.stand_ins) {
    fail_usage(
        "{}: its pruned experts left mean outputs, for which a V-MoE of the reference has "
        "no place",
        from_);
  }
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (!state_.contains(tensors_[t].name)) {
      fail("{}: '{}' is missing", from_, tensors_[t].name);
    }
    for (size_t a = 0; a < tensors_[t].arrays.size(); ++a) {
      const VMoEArray& array = tensors_[t].arrays[a];
      entries_.push_back({array.name, "float32", array.shape});
      places_[array.name] = {t, a};
    }
  }
}

/// Returns the tensor with zeros for the experts that pruning removed.
at::Tensor VMoEStateArrays::whole(const VMoETensor& tensor) const {
  const at::Tensor held = state_.at(tensor.name).to(at::kCPU, at::kFloat);
  if (held.sizes() == tensor.shape) return held;
  for (const auto& [block, kept] : config_.encoder.moe.kept_experts) {
    if (!tensor.name.starts_with("blocks." + block + ".moe.experts.")) continue;
    const at::Tensor rows = torch::tensor(kept, at::kLong);
    return at::zeros(tensor.shape, at::kFloat).index_copy(0, rows, held);
  }
  fail("{}: '{}' is {}, the network has {}", from_, tensor.name, c10::str(held.sizes()),
       c10::str(at::IntArrayRef(tensor.shape)));
}

at::Tensor VMoEStateArrays::read(const Entry& entry) const {
  const auto place = places_.find(entry.name);
  if (place == places_.end()) fail_usage("{}: no array '{}'", from_, entry.name);
  const VMoETensor& tensor = tensors_[place->second.tensor];
  const torch::NoGradGuard no_grad;
  return array_of_tensor(tensor, tensor.arrays[place->second.array], whole(tensor));
}

}  // namespace moesaic
