// SPDX-License-Identifier: Apache-2.0
// Kernels of routing by many threads: no race, and the CPU's results.
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include "moesaic/ops/route.h"
#include "ops/cuda/route_expert_choice_on.h"
#include "ops/cuda/route_token_choice_on.h"
#include "races/races_fixture.h"

namespace moesaic {
namespace {

using at::Tensor;
using testing::ThreadedDevice;

class RoutingRaces : public testing::RacesTest {
 protected:
  void SetUp() override {
    RacesTest::SetUp();
    at::manual_seed(1);
  }
};

/// Logits of few values, so that there are ties.
Tensor coarse_logits(int64_t tokens, int64_t experts, at::ScalarType type = at::kFloat) {
  return at::randn({tokens, experts}, type).mul(2).round().div(2);
}

void expect_token_choice(const Tensor& logits, const RouteOptions& options) {
  const Routing wanted = route(logits, options);
  const auto found = ops::on_device::route_token_choice_on(ThreadedDevice{}, logits, options);
  EXPECT_TRUE(at::equal(std::get<0>(found), wanted.offsets));
  EXPECT_TRUE(at::equal(std::get<1>(found), wanted.token));
  EXPECT_TRUE(at::equal(std::get<4>(found), wanted.token_row));
}

// Each is chosen by a kernel of its own.
TEST_F(RoutingRaces, TokenChoiceWithCapacityInSeveralGroups) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const int64_t k : {1, 2, 3, 6, 8}) {
      expect_token_choice(coarse_logits(600, 12, type),
                          {.k = k, .capacity = {.factor = 0.7}, .group_size = 260});
    }
  }
}

TEST_F(RoutingRaces, TokenChoiceOfKeptExperts) {
  for (const auto pruned : {PrunedSelection::zero, PrunedSelection::reroute}) {
    expect_token_choice(coarse_logits(600, 12), {.k = 2,
                                                 .gate = Gate::softmax_all,
                                                 .capacity = {.factor = 0.7},
                                                 .kept = {0, 3, 5, 11},
                                                 .pruned = pruned});
  }
}

// Bits of all experts no longer fit beside those of 256 tokens.
TEST_F(RoutingRaces, TokenChoiceOfMoreThanAThousandExperts) {
  expect_token_choice(coarse_logits(150, 1100), {.k = 8, .capacity = {.factor = 1.0}});
}

void expect_expert_choice(const Tensor& logits, const RouteOptions& options) {
  const Routing wanted = route(logits, options);
  const auto [offsets, token, gate, token_offsets, token_row] =
      ops::on_device::route_expert_choice_on(ThreadedDevice{}, logits, options);
  EXPECT_TRUE(at::equal(token, wanted.token));
  EXPECT_TRUE(at::equal(token_row, wanted.token_row));
}

TEST_F(RoutingRaces, ExpertChoiceByEveryGate) {
  for (const Gate gate : ops::kExpertGates) {
    RouteOptions options{
        .kind = RoutingKind::expert_choice, .gate = gate, .capacity = {.factor = 1.5}};
    expect_expert_choice(coarse_logits(4200, 3), options);  // several blocks for an expert
    options.group_size = 300;
    expect_expert_choice(coarse_logits(600, 4, at::kDouble), options);
  }
}

}  // namespace
}  // namespace moesaic
