// SPDX-License-Identifier: Apache-2.0
// Parameters of a V-MoE under the names and in the layouts of google-research/vmoe.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/checkpoint.h"
#include "moesaic/models/vmoe/config.h"
#include "moesaic/nn/module_state.h"

namespace moesaic {

/// An array of the reference. Reshaped to `view` and permuted by `axes` (unless empty), it is a
/// part of a tensor of this library.
struct VMoEArray {
  std::string name;            ///< E.g. "Encoder/encoderblock_1/Moe/Router/dense/kernel".
  std::vector<int64_t> shape;  ///< E.g. [d, E], in an ensemble [d, M, E / M].
  std::vector<int64_t> view;   ///< E.g. [d, E].
  std::vector<int64_t> axes;   ///< E.g. {1, 0}, which makes it [E, d].
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

/// Returns an array of the tensor, contiguous and in the reference's layout, from its values.
at::Tensor array_of_tensor(const VMoETensor& tensor, size_t array, const at::Tensor& values);

/// Returns the dtype of an array; unsigned integers become signed, which preserves equality.
/// Nothing for an unknown one.
std::optional<at::ScalarType> scalar_type_of(const std::string& dtype);

/// Arrays that are read one at a time.
struct VMoEArrays {
  std::string from;  ///< Name of the source for messages.
  std::vector<vmoe_checkpoint::Entry> entries;
  /// Returns the array, float32 and contiguous. Throws Error (failure) for non-finite values in a
  /// file.
  std::function<at::Tensor(const vmoe_checkpoint::Entry&)> read;

  /// Returns the entry of this name, or nullptr.
  const vmoe_checkpoint::Entry* find(std::string_view name) const;
};

/// Returns the arrays of a network's tensors, whose memory they share. Experts that pruning removed
/// become rows of zeros, which give a token routed to them nothing as well.
VMoEArrays arrays_of_network(const VMoEConfig& config, TensorMap state, const std::string& from);

/// Parameters in checkpoint files. They may be the whole checkpoint or a branch of a train state:
/// "params/", "target/", ...; names are relative to the branch.
struct VMoEFileArrays : VMoEArrays {
  std::string branch;  ///< "" if the parameters are the whole checkpoint.
  int64_t others =
      0;  ///< Number of arrays in other branches, e.g. the optimizer state or the step.
  int64_t shards = 0;
};
/// Returns the parameters in files; values are read and converted piece by piece.
VMoEFileArrays arrays_of_files(const std::filesystem::path& prefix);

/// Returns PREFIX for PREFIX.index and PREFIX.data-nnnnn-of-NNNNN, "" for other names.
std::string prefix_of_part(const std::filesystem::path& path);
/// Returns PREFIX for PREFIX and its files. Throws Error (usage) with the nearest name if
/// PREFIX.index does not exist.
std::filesystem::path vmoe_prefix(const std::filesystem::path& given);

}  // namespace moesaic
