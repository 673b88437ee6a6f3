// SPDX-License-Identifier: Apache-2.0
// The GPU's kernels of adaptive routing, run on the host, against the CPU's operator.
#include "moesaic/ops/route_adaptive.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ops/cuda/route_adaptive_on.h"
#include "ops/kernels/route_kernels.h"
#include "support/poison.h"
#include "support/serial_device.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::coarse;
using testing::expect_same_rows;
using testing::kOrders;
using testing::Poison;
using testing::randn;
using testing::SerialDevice;

TEST(RouteAdaptiveKernels, EqualTheCpu) {
  const Poison poison;
  for (const int64_t tokens : {0, 1, 400}) {
    for (const auto& kept : {std::vector<int64_t>{}, std::vector<int64_t>{0, 2}}) {
      const at::Tensor logits = coarse(randn({tokens, 4}, 9, torch::kFloat));
      const AdaptiveOptions options{0.5, kept};
      const Routing wanted = route_adaptive(logits, options);
      for (const auto order : kOrders) {
        const auto [offsets, token, gate, token_offsets, token_row] =
            ops::on_device::route_adaptive_on(SerialDevice{order}, logits, options);
        expect_same_rows(wanted, offsets, token, gate, token_offsets, token_row);
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
