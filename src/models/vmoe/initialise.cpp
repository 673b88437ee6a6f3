// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/vmoe/initialise.h"

#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/models/registry.h"
#include "moesaic/models/vmoe/vmoe.h"

namespace moesaic {
namespace {

const VMoE& as_vmoe(const Model& model) {
  const auto* vmoe = dynamic_cast<const VMoE*>(&model);
  if (vmoe == nullptr) fail_usage("only a V-MoE can start from a V-MoE");
  return *vmoe;
}

/// Returns the configuration of a network, with its kept experts.
VMoEConfig config_of(const Model& model) {
  return parse<VMoEConfig>(Value::from_json(as_vmoe(model).config(), "model"), "model");
}

/// A network whose fresh arrays are those of `target`, with as little else as can be: a head does
/// not depend on the blocks.
VMoEConfig with_same_fresh(VMoEConfig target, const std::vector<std::string>& fresh) {
  const bool head_only =
      std::ranges::all_of(fresh, [](const std::string& name) { return name.starts_with("head/"); });
  if (!head_only) return target;
  target.name = kVMoE;
  target.encoder.num_layers = target.encoder.mlp_dim = 1;
  target.encoder.moe = {};
  return target;
}

}  // namespace

VMoEInitialiser::VMoEInitialiser(const VMoEArrays& arrays, const VMoEConfig& target,
                                 const VMoERules& rules, const std::string& rules_from)
    : arrays_(arrays),
      tensors_(vmoe_tensors(target)),
      plan_(plan_moves(arrays.entries(), tensors_, rules, arrays.from(), rules_from)) {}

std::vector<std::string> VMoEInitialiser::transformed() const {
  std::vector<std::string> names;
  for (const VMoETensor& tensor : tensors_) {
    for (const VMoEArray& array : tensor.arrays) {
      const auto move = plan_.moves.find(array.name);
      if (move != plan_.moves.end() && move->second.transforms(array)) names.push_back(array.name);
    }
  }
  return names;
}

void VMoEInitialiser::draw_fresh(const VMoEConfig& target, uint64_t seed) {
  if (plan_.fresh.empty()) return;
  const VMoEConfig config = with_same_fresh(target, plan_.fresh);
  const auto model = build_model(Value::from_json(to_json(config), "model"), seed);
  const TensorMap state = state_of(*model);
  for (const VMoETensor& tensor : tensors_) {
    const bool all_mapped = std::ranges::all_of(
        tensor.arrays, [&](const VMoEArray& array) { return plan_.moves.contains(array.name); });
    if (!all_mapped) fresh_[tensor.name] = state.at(tensor.name).clone();
  }
}

at::Tensor VMoEInitialiser::array(const VMoETensor& tensor, const VMoEArray& array) const {
  const auto move = plan_.moves.find(array.name);
  if (move != plan_.moves.end()) {
    return moved(move->second, arrays_.read(move->second.source), array);
  }
  const auto fresh = fresh_.find(tensor.name);
  if (fresh == fresh_.end()) fail_usage("array '{}' has no values yet", array.name);
  return array_of_tensor(tensor, array, fresh->second);
}

at::Tensor VMoEInitialiser::tensor(const VMoETensor& tensor) const {
  const torch::NoGradGuard no_grad;
  return tensor_of_arrays(tensor, [&](const VMoEArray& part) { return array(tensor, part); });
}

bool differs_as_in_fine_tuning(const Model& a, const Model& b) {
  const auto *one = dynamic_cast<const VMoE*>(&a), *other = dynamic_cast<const VMoE*>(&b);
  if (one == nullptr || other == nullptr) return false;
  return a.input_shape() != b.input_shape() || a.members() != b.members() ||
         one->settings().representation_size != other->settings().representation_size ||
         one->settings().name != other->settings().name;
}

void initialise_vmoe(Model& target, const Model& source, const TensorMap& values,
                     const VMoERules& rules, const std::string& from) {
  const VMoEStateArrays arrays(config_of(source), values, from);
  const VMoEInitialiser initialiser(arrays, config_of(target), rules);
  const torch::NoGradGuard no_grad;
  TensorMap own = state_of(target);
  for (const VMoETensor& tensor : initialiser.tensors()) {
    const auto& moves = initialiser.plan().moves;
    const auto mapped = std::ranges::count_if(
        tensor.arrays, [&](const VMoEArray& array) { return moves.contains(array.name); });
    if (mapped == 0) continue;
    if (static_cast<size_t>(mapped) < tensor.arrays.size()) {
      fail_usage("{}: the rules map some arrays of '{}' only", from, tensor.name);
    }
    at::Tensor& to = own.at(tensor.name);
    if (!to.is_meta()) to.copy_(initialiser.tensor(tensor));
  }
}

void VMoE::initialise_from(const Model& source, const TensorMap& values, bool new_head,
                           const std::string& from) {
  if (!differs_as_in_fine_tuning(source, *this)) {
    Model::initialise_from(source, values, new_head, from);
    return;
  }
  VMoERules rules = fine_tuning_rules();
  const VMoEConfig& given = dynamic_cast<const VMoE&>(source).settings();
  const bool same_head =
      given.classes == config_.classes && given.pre_logits_size() == config_.pre_logits_size();
  if (!new_head || same_head) rules.erase(rules.begin());  // the rule that drops the head
  if (given.representation_size != config_.representation_size) {
    rules.insert(rules.begin(), {"^pre_logits/", ""});
  }
  initialise_vmoe(*this, source, values, rules, from);
}

}  // namespace moesaic
