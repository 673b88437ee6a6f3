// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>

namespace moesaic {

/// Registers, while an object lives, layer norm, batch norm, convolution, their gradients and
/// attention for the meta device, where LibTorch has them in Python only. A program that links this
/// library keeps its own operators otherwise. Thread-safe.
class MetaKernels {
 public:
  /// Registers the kernels unless another object has.
  MetaKernels();

 private:
  std::shared_ptr<void> registered_;
};

/// While an object lives, every tensor that this thread creates is on the meta device, with shape
/// and dtype but without values and memory. A network of any size can be built and inspected.
class MetaDeviceGuard {
 public:
  /// Switches this thread to the meta device.
  MetaDeviceGuard();
  MetaDeviceGuard(const MetaDeviceGuard&) = delete;
  MetaDeviceGuard& operator=(const MetaDeviceGuard&) = delete;

 private:
  MetaKernels kernels_;
  std::shared_ptr<void> fallback_;  ///< make_on_meta() for its dispatch key, for all threads.
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace moesaic
