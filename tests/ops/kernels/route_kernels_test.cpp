// SPDX-License-Identifier: Apache-2.0
// The GPU's routing kernels, run on the host in several orders of threads and blocks, against the
// CPU's operators: indices equal to the letter, whatever the order.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/ops/route.h"
#include "moesaic/ops/route_adaptive.h"
#include "moesaic/ops/route_expert_choice.h"
#include "ops/cuda/route_adaptive_on.h"
#include "ops/cuda/route_expert_choice_on.h"
#include "ops/cuda/route_on.h"
#include "support/poison.h"
#include "support/serial_device.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::expect_close;
using testing::kOrders;
using testing::Poison;
using testing::randn;
using testing::SerialDevice;

/// Logits of few values, so that there are many ties.
at::Tensor coarse(const at::Tensor& logits) {
  return torch::round(logits * 2) / 2;
}

void expect_same_indices(const at::Tensor& found, const at::Tensor& wanted, const char* name) {
  EXPECT_TRUE(torch::equal(found, wanted)) << name << "\n" << found << "\n" << wanted;
}

void expect_same_rows(const Routing& wanted, const at::Tensor& offsets, const at::Tensor& token,
                      const at::Tensor& gate, const at::Tensor& token_offsets,
                      const at::Tensor& token_row) {
  expect_same_indices(offsets, wanted.offsets, "offsets");
  expect_same_indices(token, wanted.token, "token");
  expect_same_indices(token_offsets, wanted.token_offsets, "token_offsets");
  expect_same_indices(token_row, wanted.token_row, "token_row");
  expect_close(gate, wanted.gate, gate.scalar_type() == torch::kFloat ? 1e-6 : 1e-13);
}

void expect_token_choice(const at::Tensor& logits, const TokenChoiceOptions& options) {
  const Routing wanted = route_token_choice(logits, options);
  for (const auto order : kOrders) {
    const auto [offsets, token, gate, token_offsets, token_row, choice, choice_row] =
        ops::on_device::route_on(SerialDevice{order}, logits, options);
    expect_same_rows(wanted, offsets, token, gate, token_offsets, token_row);
    expect_same_indices(choice, wanted.choice, "choice");
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RouteKernels, TokenChoiceEqualsTheCpuOverASweep) {
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
            TokenChoiceOptions options;
            options.k = k;
            options.gate = static_cast<Gate>(seed % 4);
            options.capacity_factor = tokens > 0 ? factor : 0.0;
            options.group_size = seed % 3 == 0 ? 0 : 65;
            options.batch_priority = priority;
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

TEST(RouteKernels, TokenChoiceOfKeptExpertsEqualsTheCpu) {
  const Poison poison;
  for (const auto pruned : {PrunedSelection::zero, PrunedSelection::reroute}) {
    for (const double factor : {0.0, 0.7}) {
      for (const bool priority : {false, true}) {
        TokenChoiceOptions options;
        options.capacity_factor = factor;
        options.group_size = 130;
        options.kept = {1, 4, 33, 39};
        options.batch_priority = priority;
        options.pruned = pruned;
        expect_token_choice(coarse(randn({400, 40}, 5, torch::kFloat)), options);
      }
    }
  }
}

TEST(RouteKernels, AHotExpertAndInfiniteLogitsEqualTheCpu) {
  const Poison poison;
  at::Tensor logits = torch::zeros({600, 6});
  logits.select(1, 4).fill_(3.0);
  TokenChoiceOptions options{.k = 2, .capacity_factor = 0.6, .group_size = 200};
  expect_token_choice(logits, options);
  options.batch_priority = true;
  expect_token_choice(logits, options);
  logits.slice(1, 0, 4).fill_(-std::numeric_limits<float>::infinity());
  options.k = 4;
  expect_token_choice(logits, options);
}

TEST(RouteKernels, MoreExpertsThanAWarpOfSegmentsEqualTheCpu) {
  const Poison poison;
  TokenChoiceOptions options{.k = 9, .capacity_factor = 1.0};
  expect_token_choice(coarse(randn({150, 1100}, 6, torch::kFloat)), options);
}

TEST(RouteKernels, TokensWithNanAreRoutedWithNanGates) {
  const Poison poison;
  at::Tensor logits = randn({40, 5}, 7, torch::kFloat);
  logits[3][2] = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t k : {2, 3}) {
    const auto out = ops::on_device::route_on(SerialDevice{}, logits, TokenChoiceOptions{.k = k});
    const at::Tensor gate = std::get<2>(out), row = std::get<6>(out);
    for (int64_t t = 0; t < 40; ++t) {
      for (int64_t rank = 0; rank < k; ++rank) {
        const auto weight = gate[row[t][rank].item<int64_t>()].item<float>();
        EXPECT_EQ(std::isnan(weight), t == 3);
      }
    }
  }
}

TEST(RouteKernels, TokenChoiceGradientsEqualTheCpu) {
  const Poison poison;
  uint64_t seed = 300;
  for (const int64_t experts : {4, 45}) {
    for (const int64_t k : {1, 2, 4}) {
      for (int64_t kind = 0; kind < 4; ++kind) {
        for (const auto& kept : {std::vector<int64_t>{}, std::vector<int64_t>{0, 1, 2, 3}}) {
          for (const bool reroute : {false, true}) {
            at::Tensor logits = randn({300, experts}, ++seed).set_requires_grad(true);
            TokenChoiceOptions options{.k = k, .gate = static_cast<Gate>(kind)};
            options.capacity_factor = 0.8;
            options.kept = kept;
            options.pruned = reroute ? PrunedSelection::reroute : PrunedSelection::zero;
            const Routing routing = route_token_choice(logits, options);
            const at::Tensor grad = randn({routing.row_bound()}, 17);
            routing.gate.backward(grad);
            const at::Tensor plain = logits.detach();
            for (const auto order : kOrders) {
              const SerialDevice device{order};
              const auto out = ops::on_device::route_on(device, plain, options);
              const at::Tensor found = ops::on_device::route_backward_on(
                  device, grad, plain, std::get<5>(out), std::get<6>(out), kind, kept, reroute);
              expect_close(found, logits.grad(), 1e-12);
            }
          }
        }
      }
    }
  }
}

TEST(RouteKernels, ExpertChoiceAndItsGradientEqualTheCpu) {
  const Poison poison;
  uint64_t seed = 500;
  for (const int64_t tokens : {64, 600}) {
    for (const int64_t group : {int64_t{0}, int64_t{16}, int64_t{300}}) {
      for (int64_t kind = 0; kind < 4; ++kind) {
        for (const auto& kept : {std::vector<int64_t>{}, std::vector<int64_t>{1, 3}}) {
          const auto type = ++seed % 2 == 0 ? torch::kFloat : torch::kDouble;
          at::Tensor logits = randn({tokens, 5}, seed, type);
          if (seed % 3 == 0) logits = coarse(logits);
          logits.set_requires_grad(true);
          ExpertChoiceOptions options;
          options.rows = seed % 4 == 0 ? 16 : 5;
          options.group_size = group;
          if (tokens % (group > 0 ? group : tokens) != 0) continue;
          options.gate = static_cast<ExpertGate>(kind);
          options.kept = kept;
          options.pruned = seed % 5 < 2 ? PrunedSelection::reroute : PrunedSelection::zero;
          const Routing wanted = route_expert_choice(logits, options);
          const at::Tensor grad = randn({wanted.row_bound()}, 18, type);
          if (kind < 3) wanted.gate.backward(grad);
          const at::Tensor plain = logits.detach();
          for (const auto order : kOrders) {
            const SerialDevice device{order};
            const auto [offsets, token, gate, token_offsets, token_row] =
                ops::on_device::route_expert_choice_on(device, plain, options);
            expect_same_rows(wanted, offsets, token, gate, token_offsets, token_row);
            if (kind == 3) continue;
            const at::Tensor found = ops::on_device::route_expert_choice_backward_on(
                device, grad, plain, token, gate, options);
            expect_close(found, logits.grad(), type == torch::kFloat ? 1e-5 : 1e-12);
          }
          ASSERT_FALSE(::testing::Test::HasFailure()) << tokens << " " << group << " " << kind;
        }
      }
    }
  }
}

TEST(RouteKernels, AdaptiveEqualsTheCpu) {
  const Poison poison;
  for (const int64_t tokens : {0, 1, 400}) {
    for (const auto& kept : {std::vector<int64_t>{}, std::vector<int64_t>{0, 2}}) {
      const at::Tensor logits = coarse(randn({tokens, 4}, 9, torch::kFloat));
      const Routing wanted = route_adaptive(logits, 0.5, kept);
      for (const auto order : kOrders) {
        const auto [offsets, token, gate, token_offsets, token_row] =
            ops::on_device::route_adaptive_on(SerialDevice{order}, logits, 0.5, kept);
        expect_same_rows(wanted, offsets, token, gate, token_offsets, token_row);
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
