// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/torch.h>

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

Module make_module(const Unit& unit, const std::string& kind, const torch::nn::Module& from,
                   const Children& children, const std::string& source, Copy copy) {
  Module module(c10::QualifiedName("__torch__.moesaic." + kind), unit, /*shouldMangle=*/true);
  // Stock PyTorch expects every module to say whether it trains.
  module.register_attribute("training", c10::BoolType::get(), false);
  const auto add = [&](const auto& item, bool is_buffer) {
    const at::Tensor& value = item.value();
    module.register_parameter(item.key(), copy == Copy::yes ? value.detach().clone() : value,
                              is_buffer);
  };
  for (const auto& parameter : from.named_parameters(/*recurse=*/false)) add(parameter, false);
  for (const auto& buffer : from.named_buffers(/*recurse=*/false)) add(buffer, true);
  for (const auto& [name, child] : children) module.register_module(name, child);
  if (!source.empty()) module.define(source);
  return module;
}

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

std::string entrance(const std::vector<int64_t>& shape) {
  return fmt::format(R"(
def forward(self, images: Tensor) -> Tensor:
    size = images.size()
    fits = images.dim() == 4 and size[1:] == [{0}]
    assert fits, "images must have the shape [batch, {0}], found {{}}".format(size)
)",
                     fmt::join(shape, ", "));
}

std::string literal(double number) {
  const std::string text = fmt::format("{}", number);
  const bool is_float = text.find_first_of(".e") != std::string::npos;
  return is_float ? text : text + ".0";
}

}  // namespace moesaic::script
