// SPDX-License-Identifier: Apache-2.0
// Tensors of safetensors files of examples, each checked before it is read. Everything here throws
// Error (failure) with the file's path, which is given since a file does not keep it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <string>

#include "moesaic/formats/safetensors.h"

namespace moesaic {

/// Dtypes of LibTorch by those of safetensors.
using DtypeMap = std::map<std::string, at::ScalarType>;

/// Return F32, F16 and BF16; the integers of at most 64 bits but U16 to U64; all of these and F64.
const DtypeMap& floating_dtypes();
const DtypeMap& integer_dtypes();
const DtypeMap& number_dtypes();

/// Returns a tensor that has 1 or 2 dimensions, as `dims` says, and numbers, and is of one of these
/// dtypes.
at::Tensor read_tensor(const safetensors::File& file, const std::string& path,
                       const std::string& name, std::size_t dims, const DtypeMap& dtypes);

/// Checks that all numbers of a tensor [N, d] are finite.
void check_finite_rows(const at::Tensor& x_Nd, const std::string& path, const std::string& name);

}  // namespace moesaic
