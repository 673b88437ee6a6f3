// SPDX-License-Identifier: Apache-2.0
// Devices that the operators of this build support.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

/// Returns whether the operators have CUDA kernels. torch::cuda::is_available() says whether there
/// is a GPU.
bool has_cuda_operators();

/// Returns the dtypes that this processor's matrix products take without conversion, as text for
/// messages. Throws Error (usage) where MOESAIC_CPU has another value than "generic".
std::string cpu_matmul_dtypes();

/// Returns whether this processor multiplies int8, by AVX512-VNNI or AMX. Throws as
/// cpu_matmul_dtypes().
bool has_int8_matmul();

/// Throws Error (usage) unless this build and machine can compute on "cpu" or "cuda", and for
/// "cuda" where MOESAIC_CUDA_OFF names an unknown part.
void check_device(const std::string& device);

/// LibTorch's grouped product of bfloat16 rows, a part of grouped_mlp; without it every expert has
/// a product of its own.
constexpr const char* kGroupedMm = "grouped_mm";

/// Returns the features on a GPU that the environment variable MOESAIC_CUDA_OFF=a,b can turn off:
/// kGroupedMm, and operators, which the CPU then computes on copies.
const std::vector<std::string>& cuda_features();

/// Returns the features that MOESAIC_CUDA_OFF names. The variable is read at every call, so that
/// one program can compare. Throws Error (usage) for an unknown one.
std::vector<std::string> disabled_cuda_features();
/// Returns whether MOESAIC_CUDA_OFF names the feature.
bool is_cuda_feature_disabled(std::string_view part);

}  // namespace moesaic
