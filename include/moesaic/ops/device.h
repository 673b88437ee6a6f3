// SPDX-License-Identifier: Apache-2.0
// Devices that the operators of this build support, and LibTorch's settings for a GPU.
#pragma once

#include <c10/core/Device.h>

#include <optional>
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

/// LibTorch's settings for a GPU.
struct BackendOptions {
  bool deterministic = false;  ///< Takes kernels that give equal bits from run to run.
  /// Lets cuDNN try its algorithms for each shape of a convolution and keep the fastest, whose
  /// bits are not those of another; not together with `deterministic`.
  bool wants_cudnn_benchmark = false;
  /// Products and convolutions of float32 may round their inputs to 10 bits of mantissa (TF32).
  bool tf32 = false;
};

/// LibTorch's settings for work on a GPU, which are the process's, while an object lives. For other
/// devices an object changes nothing: results on a CPU are equal from run to run anyway, and
/// several threads may compute at once, each with an object of its own.
class BackendScope {
 public:
  /// Applies the options where `device` is a GPU, until this object ends.
  BackendScope(c10::Device device, BackendOptions options);
  ~BackendScope();
  BackendScope(const BackendScope&) = delete;
  BackendScope& operator=(const BackendScope&) = delete;

 private:
  struct Settings {
    bool deterministic, warns_only, benchmark, tf32_products, tf32_convolutions;
  };
  std::optional<Settings> before_;
};

/// While a NoTf32 object lives, products of float32 on the GPU `device` keep their inputs' 24 bits,
/// whatever BackendScope allows. The setting is the process's: gradients, which LibTorch computes
/// later, follow BackendScope.
class NoTf32 {
 public:
  /// Turns TF32 off where `device` is a GPU, until this object ends.
  explicit NoTf32(c10::Device device);
  ~NoTf32();
  NoTf32(const NoTf32&) = delete;
  NoTf32& operator=(const NoTf32&) = delete;

 private:
  bool was_allowed_;
};

/// Throws Error (usage) where a deterministic run on the device lacks what cuBLAS needs for it in
/// the environment.
void check_backend(c10::Device device, bool deterministic);

}  // namespace moesaic
