// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace moesaic {

/// While it lives, every tensor that this thread makes from nothing is made on the meta device: it
/// has shape and dtype but no numbers and no memory, so that a network of any size can be built and
/// looked at.
class OnMetaDevice {
 public:
  OnMetaDevice() : guard_(c10::DispatchKey::DeferredInit) {}

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace moesaic
