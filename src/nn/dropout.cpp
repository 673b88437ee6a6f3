// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/dropout.h"

#include <torch/torch.h>

namespace moesaic::nn {

at::Tensor dropout(const at::Tensor& x, double rate, const at::Generator& random) {
  if (rate <= 0.0 || !random.defined()) return x;
  const double keep = 1.0 - rate;
  return x * at::empty(x.sizes(), x.options()).bernoulli_(keep, random).div_(keep);
}

}  // namespace moesaic::nn
