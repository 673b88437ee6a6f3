// SPDX-License-Identifier: Apache-2.0
// Where every parameter of a V-MoE stands in the tree of google-research/vmoe, and in which layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "moesaic/models/vmoe/config.h"

namespace moesaic {

/// An array of the reference. With its axes merged to `view` and then put in the order `axes` (as
/// they are where that is empty), it is a part of a tensor here.
struct VMoEArray {
  std::string name;            ///< e.g. "Encoder/encoderblock_1/Moe/Router/dense/kernel"
  std::vector<int64_t> shape;  ///< e.g. [d, E], in an ensemble [d, M, E / M]
  std::vector<int64_t> view;   ///< e.g. [d, E]
  std::vector<int64_t> axes;   ///< e.g. {1, 0}, which makes it [E, d]

  bool operator==(const VMoEArray&) const = default;
};

/// A tensor of the network's state dict, and the arrays that it is made of, one behind the other
/// along the first axis: query, key and value are one tensor here.
struct VMoETensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<VMoEArray> arrays;
};

/// All of them, for a network without a pruned expert; what `config` says of kept experts is not
/// looked at.
std::vector<VMoETensor> vmoe_tensors(const VMoEConfig& config);

/// The tensor, from its arrays in the reference's layout; it may share the memory of one of them.
at::Tensor tensor_of_arrays(const VMoETensor& tensor,
                            const std::function<at::Tensor(const VMoEArray&)>& array);

/// The array, contiguous and in the reference's layout, from the tensor that it is a part of.
at::Tensor array_of_tensor(const VMoETensor& tensor, const VMoEArray& array,
                           const at::Tensor& values);

}  // namespace moesaic
