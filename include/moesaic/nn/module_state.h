// SPDX-License-Identifier: Apache-2.0
// Reads and writes the state of modules as named tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <string_view>

namespace moesaic {

using TensorMap = std::map<std::string, at::Tensor>;

/// Returns the parameters and buffers of a module under their full names. The tensors share the
/// module's memory: clone what must stay the same during training.
TensorMap state_of(const torch::nn::Module& module);

/// Returns the bytes of all tensors.
double bytes_of(const TensorMap& tensors);

/// Returns whether no number is NaN or infinite; always for integers.
bool all_finite(const at::Tensor& tensor);

/// Copies tensors into the module's parameters and buffers, on the module's device. Throws Error
/// (failure), before anything is copied, unless every name, shape and dtype agrees; its one line
/// begins with `from` and says what is missing, unexpected or different. Where the number of
/// experts differs, it names `kept_experts`, the setting for the experts a network still has.
void load_state(torch::nn::Module& module, const TensorMap& tensors, std::string_view from,
                std::string_view kept_experts = "");

}  // namespace moesaic
