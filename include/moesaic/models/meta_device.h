// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace moesaic {

/// While one lives, layer norms, batch norms, convolutions and attention give shapes on the meta
/// device, for which LibTorch itself has them in Python only. A program that links this library
/// keeps its own operators otherwise. Threads may make and end them at any time.
class MetaKernels {
 public:
  MetaKernels();
  ~MetaKernels();
  MetaKernels(const MetaKernels&) = delete;
  MetaKernels& operator=(const MetaKernels&) = delete;
};

/// While it lives, every tensor that this thread makes from nothing is made on the meta device: it
/// has shape and dtype but no numbers and no memory, so that a network of any size can be built and
/// looked at.
class OnMetaDevice {
 public:
  OnMetaDevice();
  ~OnMetaDevice();
  OnMetaDevice(const OnMetaDevice&) = delete;
  OnMetaDevice& operator=(const OnMetaDevice&) = delete;

 private:
  /// Of the dispatch key under which operators pass by make_on_meta(), in every thread.
  struct Fallback {
    Fallback();
    ~Fallback();
  };

  MetaKernels kernels_;
  Fallback fallback_;
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace moesaic
