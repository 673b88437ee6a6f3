// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace moesaic {

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
