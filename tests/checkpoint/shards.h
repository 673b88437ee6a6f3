// SPDX-License-Identifier: Apache-2.0
// Cuts checkpoints into parts, as processes that share the experts would.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "moesaic/checkpoint/save.h"
#include "moesaic/checkpoint/store.h"

namespace moesaic::testing {

inline constexpr const char* kWeightsIndex = "model.safetensors.index.json";
inline constexpr const char* kOptimizerIndex = "optimizer.safetensors.index.json";

/// Slices every tensor of an MoE layer; the first part has all others.
inline TensorMap shard(const TensorMap& tensors, int64_t index, int64_t count) {
  TensorMap own;
  for (const auto& [name, tensor] : tensors) {
    const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 0;
    if (name.find("moe") == std::string::npos || rows == 0) {
      if (index == 0) own[name] = tensor;
      continue;
    }
    const int64_t first = rows * index / count, end = rows * (index + 1) / count;
    if (first < end) own[slice_name({name, first, end})] = tensor.slice(0, first, end);
  }
  return own;
}

inline CheckpointShard shard(const Checkpoint& whole, int64_t index, int64_t count) {
  if (count == 1) return {whole.model, whole.optimizer};
  return {shard(whole.model, index, count), shard(whole.optimizer, index, count)};
}

inline void save_in_parts(const std::filesystem::path& folder, const Checkpoint& whole,
                          int64_t count) {
  StagedDirectory staged(folder);
  std::vector<WrittenShard> parts;
  for (int64_t i = 0; i < count; ++i) {
    parts.push_back(
        parse_written_shard(to_text(write_shard(staged.path(), i, count, shard(whole, i, count)))));
  }
  publish(staged, parts, whole.config, whole.state);
}

}  // namespace moesaic::testing
