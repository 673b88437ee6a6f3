// SPDX-License-Identifier: Apache-2.0
// TorchScript forms of networks by recording what they compute.
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/torch.h>

#include "moesaic/nn/script.h"

namespace moesaic::script {
namespace {

/// Makes the tree of a module around its own tensors, without methods.
Module make_tree(const Unit& unit, const torch::nn::Module& from) {
  Children children;
  for (const auto& child : from.named_children()) {
    children.emplace_back(child.key(), make_tree(unit, *child.value()));
  }
  return make_module(unit, "Network", from, children, "", Copy::no);
}

void copy_tensors(Module& module) {
  for (const auto& item : module.named_attributes(/*recurse=*/false)) {
    if (item.value.isTensor()) module.setattr(item.name, item.value.toTensor().detach().clone());
  }
  for (Module child : module.children()) copy_tensors(child);
}

}  // namespace

Module make_traced(const Unit& unit, torch::nn::Module& from,
                   const std::function<at::Tensor(const at::Tensor&)>& forward,
                   const std::vector<int64_t>& shape) {
  using torch::jit::Stack;
  Module module = make_tree(unit, from);
  std::vector<int64_t> batch = {2};
  batch.insert(batch.end(), shape.begin(), shape.end());
  const torch::NoGradGuard no_grad;
  const bool trains = from.is_training();
  from.eval();
  const auto [state, outputs] = torch::jit::tracer::trace(
      {at::zeros(batch, from.parameters().front().options())},
      [&](const Stack& images) { return Stack{forward(images.at(0).toTensor())}; },
      [](const at::Tensor&) { return std::string(); }, /*strict=*/true, /*force_outplace=*/false,
      &module);
  from.train(trains);
  module.type()->addMethod(
      unit->create_function(c10::QualifiedName(*module.type()->name(), "forward"), state->graph));
  copy_tensors(module);  // Recording finds parameters by identity.
  return module;
}

}  // namespace moesaic::script
