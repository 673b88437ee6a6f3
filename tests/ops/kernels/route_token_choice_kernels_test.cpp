// SPDX-License-Identifier: Apache-2.0
// The GPU's kernels of token choice, run on the host, against the CPU's operator.
#include "moesaic/ops/route.h"

#include "ops/cuda/route_token_choice_on.h"
#include "ops/kernels/route_kernels.h"
#include "support/poison.h"
#include "support/serial_device.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::coarse;
using testing::expect_same_indices;
using testing::expect_same_rows;
using testing::kOrders;
using testing::Poison;
using testing::SerialDevice;

void expect_token_choice(const at::Tensor& logits, const RouteOptions& options) {
  const Routing wanted = route(logits, options);
  for (const auto order : kOrders) {
    const auto [offsets, token, gate, token_offsets, token_row, choice, choice_row] =
        ops::on_device::route_token_choice_on(SerialDevice{order}, logits, options);
    expect_same_rows(wanted, offsets, token, gate, token_offsets, token_row);
    expect_same_indices(choice, wanted.choice, "choice");
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RouteTokenChoiceKernels, EqualTheCpuOverASweep) {
  const Poison poison;
  uint64_t seed = 100;
  for (const int64_t tokens : {0, 1, 31, 300, 777}) {
    for (const int64_t experts : {1, 3, 8, 45}) {
      for (const int64_t k : {1, 2, 3, 6, 11}) {
        if (k > experts) continue;
        for (const double factor : {0.0, 0.5, 1.05}) {
          for (const bool priority : {false, true}) {
            const auto type = seed % 2 == 0 ? torch::kFloat : torch::kDouble;
            const at::Tensor logits = randn({tokens, experts}, ++seed, type);
            const RouteOptions options{
                .k = k,
                .gate = static_cast<Gate>(seed % 4),
                .capacity = {.factor = tokens > 0 ? factor : 0.0, .batch_priority = priority},
                .group_size = seed % 3 == 0 ? 0 : 65};
            expect_token_choice(seed % 5 < 3 ? coarse(logits) : logits, options);
            ASSERT_FALSE(::testing::Test::HasFailure())
                << tokens << " tokens, " << experts << " experts, k " << k << ", factor " << factor
                << ", group " << options.group_size << ", priority " << priority;
          }
        }
      }
    }
  }
}

TEST(RouteTokenChoiceKernels, OfKeptExpertsEqualTheCpu) {
  const Poison poison;
  for (const auto pruned : {PrunedSelection::zero, PrunedSelection::reroute}) {
    for (const double factor : {0.0, 0.7}) {
      for (const bool priority : {false, true}) {
        expect_token_choice(coarse(randn({400, 40}, 5, torch::kFloat)),
                            {.capacity = {.factor = factor, .batch_priority = priority},
                             .group_size = 130,
                             .kept = {1, 4, 33, 39},
                             .pruned = pruned});
      }
    }
  }
}

TEST(RouteTokenChoiceKernels, AHotExpertAndInfiniteLogitsEqualTheCpu) {
  const Poison poison;
  at::Tensor logits = torch::zeros({600, 6});
  logits.select(1, 4).fill_(3.0);
  RouteOptions options{.k = 2, .capacity = {.factor = 0.6}, .group_size = 200};
  expect_token_choice(logits, options);
  options.capacity.batch_priority = true;
  expect_token_choice(logits, options);
  logits.slice(1, 0, 4).fill_(-std::numeric_limits<float>::infinity());
  options.k = 4;
  expect_token_choice(logits, options);
}

TEST(RouteTokenChoiceKernels, MoreExpertsThanAWarpOfSegmentsEqualTheCpu) {
  const Poison poison;
  RouteOptions options{.k = 8, .capacity = {.factor = 1.0}};
  expect_token_choice(coarse(randn({150, 1100}, 6, torch::kFloat)), options);
}

TEST(RouteTokenChoiceKernels, TokensWithNanAreRoutedWithNanGates) {
  const Poison poison;
  at::Tensor logits = randn({40, 5}, 7, torch::kFloat);
  logits[3][2] = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t k : {2, 3}) {
    const auto out =
        ops::on_device::route_token_choice_on(SerialDevice{}, logits, RouteOptions{.k = k});
    const at::Tensor gate = std::get<2>(out), row = std::get<6>(out);
    for (int64_t t = 0; t < 40; ++t) {
      for (int64_t rank = 0; rank < k; ++rank) {
        const auto weight = gate[row[t][rank].item<int64_t>()].item<float>();
        EXPECT_EQ(std::isnan(weight), t == 3);
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
