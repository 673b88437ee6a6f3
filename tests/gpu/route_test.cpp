// SPDX-License-Identifier: Apache-2.0
// Routing on a GPU against the CPU: indices equal to the letter.
#include "moesaic/ops/route.h"
#include "support/cuda.h"
#include "support/poison.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::on_cpu;
using testing::on_gpu;
using testing::Poison;

class RouteCuda : public testing::CudaTest {};

void expect_equal_routings(const Routing& found, const Routing& wanted) {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return torch::equal(a.to(torch::kCPU), b);
  };
  EXPECT_TRUE(same(found.offsets, wanted.offsets));
  EXPECT_TRUE(same(found.token, wanted.token));
  EXPECT_TRUE(same(found.token_offsets, wanted.token_offsets));
  EXPECT_TRUE(same(found.token_row, wanted.token_row));
  EXPECT_TRUE(same(found.choice, wanted.choice));
  expect_close(on_cpu(found.gate), wanted.gate.detach(), 1e-6);
}

/// Routes on both devices and compares rows and gradients.
template <class Route>
void expect_like_cpu(const at::Tensor& logits, const Route& route) {
  at::Tensor here = logits.detach().clone().set_requires_grad(true);
  at::Tensor there = on_gpu(logits).detach().set_requires_grad(true);
  const Routing wanted = route(here), found = route(there);
  expect_equal_routings(found, wanted);
  if (!wanted.gate.requires_grad()) return;
  const at::Tensor grad = randn(wanted.gate.sizes().vec(), 3, logits.scalar_type());
  wanted.gate.backward(grad);
  found.gate.backward(on_gpu(grad));
  expect_close(on_cpu(there.grad()), on_cpu(here.grad()), 1e-5);
}

// Gates decide with batch priority and, in expert choice, softmax_all. In float32 they are the same
// bits on every device; in float64 exp() may differ in the last bit, which decides between gates
// that are equal but for rounding.
at::Tensor with_ties(at::Tensor logits, uint64_t seed) {
  return seed % 2 == 0 ? torch::round(logits * 2) / 2 : logits;
}

TEST_F(RouteCuda, TokenChoiceEqualsTheCpu) {
  const Poison poison;
  uint64_t seed = 0;
  for (const int64_t tokens : {0, 1, 300, 5000}) {
    for (const int64_t experts : {1, 8, 45, 300}) {
      for (const int64_t k : {1, 2, 5, 12}) {
        if (k > experts) continue;
        for (const bool priority : {false, true}) {
          const auto type = ++seed % 3 == 0 && !priority ? torch::kDouble : torch::kFloat;
          RouteOptions options;
          options.k = k;
          options.gate = static_cast<Gate>(seed % 4);
          options.capacity.factor = tokens > 0 && seed % 5 > 0 ? 0.9 : 0.0;
          options.group_size = seed % 3 == 0 ? 0 : 260;
          options.capacity.batch_priority = priority;
          if (experts >= 45 && seed % 2 == 0) options.kept = {0, 3, 31, 32, 44};
          if (static_cast<int64_t>(options.kept.size()) >= k && seed % 4 == 0) {
            options.pruned = PrunedSelection::reroute;
          }
          expect_like_cpu(with_ties(randn({tokens, experts}, seed, type), seed / 2),
                          [&](const auto& logits) { return route(logits, options); });
          ASSERT_FALSE(HasFailure()) << tokens << " " << experts << " " << k << " " << seed;
        }
      }
    }
  }
}

TEST_F(RouteCuda, ExpertChoiceEqualsTheCpu) {
  const Poison poison;
  uint64_t seed = 50;
  for (const int64_t group : {0, 50, 1000}) {
    for (const Gate gate :
         {Gate::softmax_selected, Gate::softmax_tokens, Gate::softmax_all, Gate::one}) {
      for (const auto& kept : {std::vector<int64_t>{}, std::vector<int64_t>{1, 4}}) {
        RouteOptions options{.kind = RoutingKind::expert_choice};
        options.capacity.factor = 1.5;
        options.group_size = group;
        options.gate = gate;
        options.kept = kept;
        const auto type = ++seed % 2 == 0 ? torch::kDouble : torch::kFloat;
        expect_like_cpu(randn({3000, 8}, seed, type),
                        [&](const auto& logits) { return route(logits, options); });
        ASSERT_FALSE(HasFailure())
            << group << " " << gate_names()[static_cast<size_t>(gate)] << " " << seed;
      }
    }
  }
}

TEST_F(RouteCuda, AdaptiveEqualsTheCpu) {
  const Poison poison;
  for (const int64_t tokens : {0, 1, 3000}) {
    expect_like_cpu(randn({tokens, 7}, 8, torch::kFloat), [](const auto& logits) {
      return route(logits, {.kind = RoutingKind::threshold, .threshold = 0.3, .kept = {0, 2, 6}});
    });
  }
}

TEST_F(RouteCuda, NanShowsInTheGates) {
  at::Tensor logits = randn({10, 4}, 9, torch::kFloat);
  logits[3][1] = std::numeric_limits<float>::quiet_NaN();
  const Routing routing = route(on_gpu(logits), {.k = 2});
  EXPECT_EQ(on_cpu(routing.gate).isnan().sum().item<int64_t>(), 2);
}

}  // namespace
}  // namespace moesaic
