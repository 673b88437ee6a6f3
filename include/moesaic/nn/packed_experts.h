// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <vector>

#include "moesaic/ops/grouped_mlp.h"

namespace moesaic::nn {

/// Weights of experts laid out for inference on the CPU (pack_experts()), kept while the weights
/// stay the same. Weights that are seen once are not worth it: they are laid out at the second
/// call. May be called from several threads.
class PackedExperts {
 public:
  /// Returns the weights in `type`, packed where they are those of the last call.
  ExpertWeights get(const ExpertWeights& weights, at::ScalarType type);

  /// Frees what is kept.
  void clear();

 private:
  std::mutex mutex_;
  ExpertWeights seen_, packed_;    // Aliases, which keep the memory from being used again.
  std::vector<int64_t> versions_;  // Of the seen weights.
};

}  // namespace moesaic::nn
