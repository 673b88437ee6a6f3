// SPDX-License-Identifier: Apache-2.0
// Mixed precision by autocast: which operators run in bfloat16.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>

namespace moesaic {

/// While an Autocast object lives, products run in bfloat16 on this thread: linear layers,
/// convolutions, attention and, of this library, grouped_mlp and routed_mlp, whose sums over
/// experts stay float32. Routers (route_* and the logits they take), norms and softmax stay
/// float32, and so do the parameters, which are rounded as they are used. With "float32" the object
/// does nothing. CPU and CUDA are supported.
class Autocast {
 public:
  /// Turns autocast on for the `precision` float32 or bfloat16. Throws Error (usage) for others.
  Autocast(const std::string& precision, c10::Device device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool is_enabled_, was_enabled_ = false;
  c10::DeviceType device_;
  c10::ScalarType was_type_ = c10::ScalarType::Undefined;
};

/// While a NoAutocastGuard lives, autocast is off on this thread.
class NoAutocastGuard {
 public:
  /// Turns autocast off.
  NoAutocastGuard() : guard_(c10::autocast_dispatch_keyset) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace moesaic
