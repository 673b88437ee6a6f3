// SPDX-License-Identifier: Apache-2.0
// Checkpoints of V-MoEs in the reference's format, small and random, and those that it wrote.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <string>

#include "base/support.h"
#include "import/vmoe/reference.h"
#include "moesaic/checkpoint/tensors.h"
#include "support/reference_files.h"
#include "support/small_vmoe.h"

namespace moesaic::testing {

/// The small V-MoE with 8 experts, on images [3, 32, 32] in patches of 8.
inline VMoEConfig import_config() {
  VMoEConfig config = small_vmoe_config();
  config.image_size = 32;
  config.channels = 3;
  config.patch_size = 8;
  config.encoder.moe.num_experts = 8;
  config.encoder.moe.group_size = 34;
  config.encoder.moe.router.capacity.factor = 1.5;
  return config;
}

/// By the reference's names, in its layouts.
inline TensorMap random_arrays(const VMoEConfig& config, uint64_t seed = 1) {
  TensorMap arrays;
  auto generator = at::detail::createCPUGenerator(seed);
  for (const VMoETensor& tensor : vmoe_tensors(config)) {
    for (const VMoEArray& array : tensor.arrays) {
      arrays[array.name] = at::randn(array.shape, generator);
    }
  }
  return arrays;
}

inline const char* reference_dtype(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    default:
      return "float32";
  }
}

inline void write_arrays(const std::filesystem::path& prefix, const TensorMap& arrays,
                         const vmoe_checkpoint::WriteOptions& options = {}) {
  std::vector<vmoe_checkpoint::Entry> entries;
  for (const auto& [name, tensor] : arrays) {
    entries.push_back({name, reference_dtype(tensor.scalar_type()), tensor.sizes().vec()});
  }
  at::Tensor held;
  vmoe_checkpoint::write(
      prefix, entries,
      [&](const vmoe_checkpoint::Entry& entry) {
        held = arrays.at(entry.name).contiguous();
        return std::span(static_cast<const std::byte*>(held.const_data_ptr()), held.nbytes());
      },
      options);
}

/// float32 arrays, by name.
inline TensorMap read_arrays(const std::filesystem::path& prefix) {
  const vmoe_checkpoint::Reader reader(prefix);
  TensorMap arrays;
  for (const auto& entry : reader.entries()) {
    at::Tensor& out = arrays[entry.name] = at::empty(entry.shape, at::kFloat);
    reader.read(entry, std::span(static_cast<std::byte*>(out.mutable_data_ptr()), out.nbytes()));
  }
  return arrays;
}

inline void expect_equal(const TensorMap& found, const TensorMap& wanted) {
  EXPECT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(torch::equal(found.at(name), tensor)) << name;
  }
}

}  // namespace moesaic::testing
