// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/script.h"

#include <fmt/format.h>

namespace moesaic::script {

Module make_module(const Unit& unit, const std::string& kind, const torch::nn::Module& from,
                   const Children& children, const std::string& source) {
  Module module(c10::QualifiedName("__torch__.moesaic." + kind), unit, /*shouldMangle=*/true);
  // Stock PyTorch expects every module to say whether it trains.
  module.register_attribute("training", c10::BoolType::get(), false);
  for (const auto& parameter : from.named_parameters(/*recurse=*/false)) {
    module.register_parameter(parameter.key(), parameter.value().detach().clone(), false);
  }
  for (const auto& buffer : from.named_buffers(/*recurse=*/false)) {
    module.register_parameter(buffer.key(), buffer.value().detach().clone(), true);
  }
  for (const auto& [name, child] : children) module.register_module(name, child);
  if (!source.empty()) module.define(source);
  return module;
}

std::string literal(double number) {
  const std::string text = fmt::format("{}", number);
  const bool is_float = text.find_first_of(".e") != std::string::npos;
  return is_float ? text : text + ".0";
}

}  // namespace moesaic::script
