// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

namespace moesaic {

struct BackendOptions {
  bool deterministic = false;  ///< Takes kernels that give equal bits from run to run.
  /// Lets cuDNN try its algorithms for each shape of a convolution and keep the fastest, whose
  /// bits are not those of another; not together with `deterministic`.
  bool repeats_convolutions = false;
};

/// LibTorch's settings for work on a GPU, which are the process's, while an object lives. For other
/// devices it changes none: what this library computes on a CPU is equal from run to run anyway.
class BackendScope {
 public:
  BackendScope(c10::Device device, BackendOptions options);
  ~BackendScope();
  BackendScope(const BackendScope&) = delete;
  BackendScope& operator=(const BackendScope&) = delete;

 private:
  bool deterministic_, warns_only_, benchmark_;  ///< The settings before.
};

/// Throws Error (usage) where a deterministic run on the device lacks what cuBLAS needs for it in
/// the environment.
void check_backend(c10::Device device, bool deterministic);

}  // namespace moesaic
