// SPDX-License-Identifier: Apache-2.0
// Named tensors: from and to safetensors files, out of and into modules.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace moesaic {

using TensorMap = std::map<std::string, at::Tensor>;

/// All tensors of a safetensors file, as fresh contiguous CPU tensors that do not depend on the
/// file. Dtypes: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL. Throws Error(failure) for another one and
/// for whatever formats/safetensors.h refuses.
TensorMap read_tensors(const std::filesystem::path& path);

/// Writes a safetensors file atomically; tensors may be on any device and need not be contiguous.
/// Equal tensors give equal files. Throws Error(failure) for a dtype that read_tensors does not
/// know and for undefined or sparse tensors.
void write_tensors(const std::filesystem::path& path, const TensorMap& tensors,
                   const std::map<std::string, std::string>& metadata = {});

/// The parameters and buffers of a module under their full names. They share the module's memory:
/// clone what is to be kept while it trains on.
TensorMap state_of(const torch::nn::Module& module);

/// Copies tensors into the module's parameters and buffers, on the module's device. Strict: every
/// name, shape and dtype has to agree, otherwise nothing is copied and Error(failure) says in one
/// line, begun by `from`, what is missing, unexpected or different.
void load_state(torch::nn::Module& module, const TensorMap& tensors, std::string_view from);

}  // namespace moesaic
