// SPDX-License-Identifier: Apache-2.0
// Named tensors out of and into modules.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <string_view>

namespace moesaic {

using TensorMap = std::map<std::string, at::Tensor>;

/// The parameters and buffers of a module under their full names. They share the module's memory:
/// clone what is to be kept while it trains on.
TensorMap state_of(const torch::nn::Module& module);

/// Copies tensors into the module's parameters and buffers, on the module's device. Strict: every
/// name, shape and dtype has to agree, otherwise nothing is copied and Error(failure) says in one
/// line, begun by `from`, what is missing, unexpected or different. Where the number of experts
/// is, the line names `kept_experts`, the setting that says which of them a network still has.
void load_state(torch::nn::Module& module, const TensorMap& tensors, std::string_view from,
                std::string_view kept_experts = "");

}  // namespace moesaic
