// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/dropout.h"

#include <torch/torch.h>

#include "moesaic/parallel/group.h"

namespace moesaic::nn {

at::Tensor dropout(const at::Tensor& x, double rate, const at::Generator& random,
                   const BatchShare& share) {
  if (rate <= 0.0 || !random.defined()) return x;
  const double keep = 1.0 - rate;
  const auto parts = share.parts();
  std::vector<int64_t> shape = x.sizes().vec();
  if (parts) shape[0] *= parts->size();
  at::Tensor factors = at::empty(shape, x.options()).bernoulli_(keep, random);
  if (parts) factors = factors.narrow(0, parts->rank() * x.size(0), x.size(0));
  return x * factors.div_(keep);
}

}  // namespace moesaic::nn
