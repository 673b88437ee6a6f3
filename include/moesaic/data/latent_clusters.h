// SPDX-License-Identifier: Apache-2.0
// Data of assumption 3.2 of "Mixture of Experts Provably Detect and Learn the Latent Cluster
// Structure in Gradient-Based Learning".
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/data/latent_clusters_config.h"

namespace moesaic {

/// What the data are made of, float32 rows: w_c [C, d], w_g [1, d] and the means rho v_c [C, d].
struct LatentTruth {
  at::Tensor local_Cd, global_1d, mean_Cd;
  std::vector<double> sign;  ///< s_c: +1, -1 in turn; of an odd number the last three are +1, -1/2,
                             ///< -1/2.
};
LatentTruth latent_truth(const LatentClustersConfig& config);

struct LatentExamples {
  at::Tensor x_Nd;       ///< float32
  at::Tensor y_N;        ///< float32
  at::Tensor cluster_N;  ///< int64
};

/// Generates examples `first` to `first + count - 1` of a split: c is uniform, x ~ N(rho v_c, I),
/// y = f_c(<w_c, x>) + s_c g(<w_g, x>), with noise of N(0, zeta^2) in the training split. Example i
/// depends on seed, split and i only, with the same bits on every processor.
LatentExamples latent_examples(const LatentClustersConfig& config, const LatentTruth& truth,
                               const std::string& split, int64_t first, int64_t count);

}  // namespace moesaic
