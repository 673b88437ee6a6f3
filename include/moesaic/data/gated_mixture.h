// SPDX-License-Identifier: Apache-2.0
// Data of a gated mixture, eq. 1 of "Learning in Gated Neural Networks".
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "moesaic/data/gated_mixture_config.h"

namespace moesaic {

/// The regressors a_i [k, d], of norm 1, and gates w_i [k - 1, d], float32; w_k = 0.
struct GatedTruth {
  at::Tensor a_kd, w_kd;
};
GatedTruth gated_truth(const GatedMixtureConfig& config);

struct GatedExamples {
  at::Tensor x_Nd;  ///< float32; the examples of a number lie side by side.
  at::Tensor y_N;   ///< float32
};

/// Generates examples `first` to `first + count - 1` of a split: x ~ N(0, I), z ~ softmax of
/// <w_i, x>, y = g(<a_z, x>) + noise. Example i depends on seed, split and i only.
GatedExamples gated_examples(const GatedMixtureConfig& config, const GatedTruth& truth,
                             const std::string& split, int64_t first, int64_t count);

}  // namespace moesaic
