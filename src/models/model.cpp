// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/model.h"

#include <torch/torch.h>

namespace moesaic {

int64_t Model::parameter_count() const {
  int64_t count = 0;
  for (const auto& parameter : parameters()) count += parameter.numel();
  return count;
}

at::Device Model::device() const {
  return parameters().front().device();
}

}  // namespace moesaic
