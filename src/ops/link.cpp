// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/link.h"

#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "names.h"

namespace moesaic {

Link link_from_name(std::string_view name) {
  return ops::enum_from_name<Link>("link", name, {kLinkNames.begin(), kLinkNames.end()});
}

at::Tensor apply_link(const at::Tensor& z, Link link) {
  switch (link) {
    case Link::identity:
      return z;
    case Link::relu:
      return at::relu(z);
    case Link::leaky_relu:
      return at::leaky_relu(z, 0.01);
    case Link::sigmoid:
      return at::sigmoid(z);
    case Link::tanh:
      return at::tanh(z);
    case Link::softplus:
      return at::softplus(z);
    case Link::step:
      return at::relu(at::sign(z));  // Autograd knows its derivative, 0.
  }
  fail("unknown link {}", static_cast<int>(link));
}

}  // namespace moesaic
