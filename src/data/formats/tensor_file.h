// SPDX-License-Identifier: Apache-2.0
// Tensors of safetensors files of examples, each checked before it is read. Everything here throws
// Error (failure) with the file's path, which is given since a file does not keep it.
#pragma once

#include <ATen/core/Tensor.h>

#include "moesaic/formats/safetensors.h"

namespace moesaic {

/// F32, F16 and BF16; the integers of at most 64 bits but U16 to U64; all of these and F64.
enum class Numbers { floating, integer, any };

/// Returns a tensor that has 1 or 2 dimensions, as `dims` says, and numbers of this kind.
at::Tensor read_tensor(const safetensors::File& file, const std::string& path,
                       const std::string& name, std::size_t dims, Numbers kind);

/// Checks that all numbers of a tensor [N, d] are finite.
void check_finite_rows(const at::Tensor& x_Nd, const std::string& path, const std::string& name);

}  // namespace moesaic
