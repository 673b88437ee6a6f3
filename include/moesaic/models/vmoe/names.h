// SPDX-License-Identifier: Apache-2.0
// Name and layout of every parameter of a V-MoE in the tree of google-research/vmoe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "moesaic/models/vmoe/config.h"

namespace moesaic {

/// An array of the reference. Reshaped to `view` and permuted by `axes` (unless empty), it is a
/// part of a tensor of this library.
struct VMoEArray {
  std::string name;            ///< E.g. "Encoder/encoderblock_1/Moe/Router/dense/kernel".
  std::vector<int64_t> shape;  ///< E.g. [d, E], in an ensemble [d, M, E / M].
  std::vector<int64_t> view;   ///< E.g. [d, E].
  std::vector<int64_t> axes;   ///< E.g. {1, 0}, which makes it [E, d].

  bool operator==(const VMoEArray&) const = default;
};

/// A tensor of the network's state dict and the arrays that it concatenates along the first axis:
/// query, key and value are one tensor here.
struct VMoETensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<VMoEArray> arrays;
};

/// Returns all tensors of the unpruned network; kept experts of `config` are ignored.
std::vector<VMoETensor> vmoe_tensors(const VMoEConfig& config);

/// Returns the tensor from its arrays in the reference's layout; may share memory with one of them.
at::Tensor tensor_of_arrays(const VMoETensor& tensor,
                            const std::function<at::Tensor(const VMoEArray&)>& array);

/// Returns the array, contiguous and in the reference's layout, from the tensor that contains it.
at::Tensor array_of_tensor(const VMoETensor& tensor, const VMoEArray& array,
                           const at::Tensor& values);

}  // namespace moesaic
