// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/routing.h"

#include <torch/torch.h>

namespace moesaic {

at::Tensor row_experts(const Routing& routing) {
  const at::Tensor row = at::arange(routing.row_bound(), routing.offsets.options());
  // LibTorch knows no shape of searchsorted.
  if (row.is_meta()) return at::empty_like(row, row.options().dtype(at::kLong));
  return at::searchsorted(routing.offsets.slice(0, 1), row, /*out_int32=*/false, /*right=*/true);
}

at::Tensor combine_weights(const Routing& routing) {
  // Unused rows go to an extra column, so that their number need not be known on the host.
  const at::Tensor weights =
      at::zeros({routing.tokens(), routing.experts() + 1}, routing.gate.options());
  const at::Tensor token = routing.token.to(at::kLong);
  return weights.index_put({token, row_experts(routing)}, routing.gate)
      .narrow(1, 0, routing.experts());
}

}  // namespace moesaic
