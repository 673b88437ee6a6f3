// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/device.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace moesaic {

bool has_cuda_operators() {
  const auto op = c10::Dispatcher::singleton().findSchema({"moesaic::grouped_mlp", ""});
  return op && op->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

}  // namespace moesaic
