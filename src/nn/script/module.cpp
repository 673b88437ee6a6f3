// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace moesaic::script {

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
