// SPDX-License-Identifier: Apache-2.0
// The GPU's kernels of expert choice, run on the host, against the CPU's operator.
#include "moesaic/ops/route.h"

#include "ops/cuda/route_expert_choice_on.h"
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
using testing::SerialDevice;

void expect_expert_choice(const at::Tensor& logits, RouteOptions options) {
  options.kind = RoutingKind::expert_choice;
  const Routing wanted = route(logits, options);
  for (const auto order : kOrders) {
    const auto [offsets, token, gate, token_offsets, token_row] =
        ops::on_device::route_expert_choice_on(SerialDevice{order}, logits, options);
    expect_same_rows(wanted, offsets, token, gate, token_offsets, token_row);
  }
}

TEST(RouteExpertChoiceKernels, EqualTheCpu) {
  const Poison poison;
  uint64_t seed = 500;
  for (const int64_t tokens : {64, 600}) {
    for (const int64_t group : {int64_t{0}, int64_t{16}, int64_t{300}}) {
      for (int64_t kind = 0; kind < 4; ++kind) {
        for (const auto& kept : {std::vector<int64_t>{}, std::vector<int64_t>{1, 3}}) {
          const auto type = ++seed % 2 == 0 ? torch::kFloat : torch::kDouble;
          at::Tensor logits = randn({tokens, 5}, seed, type);
          if (seed % 3 == 0) logits = coarse(logits);
          if (tokens % (group > 0 ? group : tokens) != 0) continue;
          expect_expert_choice(
              logits, {.l = seed % 4 == 0 ? 16 : 5,
                       .gate = ops::kExpertGates[static_cast<size_t>(kind)],
                       .group_size = group,
                       .kept = kept,
                       .pruned = seed % 5 < 2 ? PrunedSelection::reroute : PrunedSelection::zero});
          ASSERT_FALSE(::testing::Test::HasFailure()) << tokens << " " << group << " " << kind;
        }
      }
    }
  }
}

// Some thousand tokens of a group are shared out among blocks.
TEST(RouteExpertChoiceKernels, ManyTokensEqualTheCpu) {
  const Poison poison;
  uint64_t seed = 700;
  for (const int64_t group : {int64_t{0}, int64_t{4500}}) {
    for (int64_t kind = 0; kind < 4; ++kind) {
      for (const bool ties : {false, true}) {
        const auto type = ++seed % 2 == 0 ? torch::kFloat : torch::kDouble;
        const at::Tensor logits = randn({9000, 3}, seed, type);
        expect_expert_choice(ties ? coarse(logits) : logits,
                             {.gate = ops::kExpertGates[static_cast<size_t>(kind)],
                              .capacity = {.factor = 0.7},
                              .group_size = group});
        ASSERT_FALSE(::testing::Test::HasFailure()) << group << " " << kind << " " << ties;
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
