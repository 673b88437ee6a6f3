// SPDX-License-Identifier: Apache-2.0
// Data with cluster structure, definition 3.1 of "Towards Understanding Mixture of Experts".
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "moesaic/data/cluster_mixture_config.h"

namespace moesaic {

/// The signals v_k and centres c_k of the clusters, all orthonormal, float32.
struct ClusterSignals {
  at::Tensor v_Kd, c_Kd;
};
ClusterSignals cluster_signals(const ClusterMixtureConfig& config);

struct ClusterExamples {
  at::Tensor x_NPd;      ///< Patches, float32.
  at::Tensor labels_N;   ///< Labels (y + 1) / 2, int64.
  at::Tensor cluster_N;  ///< Clusters k, int64.
};

/// Generates examples of definition 3.1: k, k' != k, y and eps = +-1, alpha, beta, gamma uniform in
/// their ranges; the patches y alpha v_k, beta c_k, eps gamma v_k' and P - 3 of
/// N(0, sigma_p^2 / d I) in random order, times `scale`; without `shuffle` in the order of this
/// list. `split` is "train" or "test"; both share signals and centres. Example i depends on seed,
/// split and i only. Returns all examples of the split, or `count` of them from index `first` on.
ClusterExamples cluster_examples(const ClusterMixtureConfig& config, const std::string& split);
ClusterExamples cluster_examples(const ClusterMixtureConfig& config, const ClusterSignals& signals,
                                 const std::string& split, int64_t first, int64_t count);

}  // namespace moesaic
