// SPDX-License-Identifier: Apache-2.0
// Mixed precision: what runs in bfloat16 while autocast is on, and what does not.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>

namespace moesaic {

/// While an Autocast lives, products run in bfloat16 on this thread: linear layers, convolutions,
/// attention and, of this library, grouped_mlp and routed_mlp, whose sums over experts stay
/// float32. Routers (route_* and the logits they take), norms and softmax stay float32, and so do
/// the parameters, which are rounded as they are used. For "float32" it does nothing. It works on
/// CPU and CUDA.
class Autocast {
 public:
  /// `precision`: float32 or bfloat16. Throws Error (usage) for another name.
  Autocast(const std::string& precision, c10::Device device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool on_, was_on_ = false;
  c10::DeviceType device_;
  c10::ScalarType was_type_ = c10::ScalarType::Undefined;
};

/// While a NoAutocast lives, nothing is cast on this thread, whatever autocast says.
class NoAutocast {
 public:
  NoAutocast() : guard_(c10::autocast_dispatch_keyset) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace moesaic
