// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

/// Distribution of router noise.
enum class NoiseKind : int64_t {
  gaussian,  ///< Normal with standard deviation scale / E (V-MoE).
  uniform,   ///< Uniform, scale * U[0, 1) (clusters paper, section 3).
};

/// Throws Error (usage) naming the nearest valid name for an unknown one.
NoiseKind noise_kind_from_name(std::string_view name);
/// Returns the enumerators' names in their order.
std::vector<std::string> noise_kind_names();

/// Options of router noise.
struct NoiseOptions {
  NoiseKind kind = NoiseKind::gaussian;  ///< The distribution.
  double scale = 1.0;                    ///< Factor in the distribution's formula; 0: no noise.
};

/// Returns the standard deviation of gaussian noise among `experts` experts, for load_loss().
double gaussian_noise_std(const NoiseOptions& options, int64_t experts);

/// Returns noise [T, E] for logits with such options, of any floating dtype, drawn anew for every
/// token and expert from `generator`, which must be defined and live on the logits' device. The
/// same state of the generator gives the same bits.
at::Tensor router_noise(int64_t tokens, int64_t experts, const at::TensorOptions& tensor,
                        const NoiseOptions& options, const at::Generator& generator);

}  // namespace moesaic
