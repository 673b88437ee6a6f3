// SPDX-License-Identifier: Apache-2.0
// The GPU's kernels for dispatch, combine and the grouped MLP, run on the host in several orders of
// threads and blocks, between the library's products.
#include <vector>

#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/route.h"
#include "ops/cuda/grouped_mlp_on.h"
#include "ops/cuda/move_rows_on.h"
#include "support/poison.h"
#include "support/serial_device.h"
#include "support/tensors.h"

namespace moesaic::ops::kernels {
namespace {

using at::Tensor;
using moesaic::testing::kOrders;
using moesaic::testing::Poison;
using moesaic::testing::SerialDevice;

Tensor wide(const Tensor& tensor) {
  return tensor.to(torch::kDouble);
}

/// A routing with tokens of several rows, of none, and rows that are not used.
Routing some_routing(at::ScalarType gates) {
  const Tensor logits = randn({70, 6}, 1, gates);
  return route(logits, {.k = 3, .kept = {0, 2, 5}});
}

void expect_moves(int64_t width, at::ScalarType type, double tolerance) {
  const Routing routing = some_routing(type == torch::kDouble ? torch::kDouble : torch::kFloat);
  const int64_t tokens = routing.num_tokens(), bound = routing.max_rows();
  const int64_t filled = routing.offsets[-1].item<int64_t>();
  ASSERT_LT(filled, bound);
  const Tensor x = randn({tokens, width}, 2, type), rows = randn({bound, width}, 3, type);
  const Tensor grad = randn({tokens, width}, 4, type);
  const Tensor b2 = randn({routing.offsets.size(0) - 1, width}, 5, type);
  const CombineArguments plain{rows, routing.gate, routing.token_offsets, routing.token_row, {},
                               {}};
  CombineArguments biased = plain;
  biased.offsets = routing.offsets;
  biased.bias = b2;
  Routing exact = routing;
  for (const auto order : kOrders) {
    const SerialDevice device{order};
    exact.gate = wide(routing.gate);
    const Tensor dispatched = on_device::dispatch_on(
        device, {x, routing.offsets, routing.token, routing.token_offsets, routing.token_row});
    EXPECT_TRUE(torch::equal(wide(dispatched), dispatch(wide(x), exact)));
    const Tensor wide_x = wide(x).clone().set_requires_grad(true);
    dispatch(wide_x, exact).backward(wide(rows));
    expect_close(wide(on_device::dispatch_backward_on(
                     device, {rows, routing.token_offsets, routing.token_row})),
                 wide_x.grad(), tolerance);

    expect_close(wide(on_device::combine_on(device, plain)), combine(wide(rows), exact), tolerance);
    expect_close(wide(on_device::combine_on(device, biased)),
                 combine_with_bias(wide(rows), wide(b2), exact), tolerance);

    Tensor leaf = wide(rows).detach().clone().set_requires_grad(true);
    exact.gate = wide(routing.gate).detach().clone().set_requires_grad(true);
    combine(leaf, exact).backward(wide(grad));
    const auto [grad_rows, grad_gate] = on_device::combine_backward_on(device, {grad, plain});
    expect_close(wide(grad_rows), leaf.grad(), tolerance);
    expect_close(wide(grad_gate), exact.gate.grad(), 1e-4);
    EXPECT_EQ(wide(grad_rows.slice(0, filled)).abs().sum().item<double>(), 0.0);

    exact.gate.mutable_grad() = Tensor();
    combine_with_bias(leaf, wide(b2), exact).backward(wide(grad));
    expect_close(wide(std::get<1>(on_device::combine_backward_on(device, {grad, biased}))),
                 exact.gate.grad(), 1e-4);
  }
}

TEST(MoveRowsKernels, EqualTheCpuInPiecesAndOneByOne) {
  const Poison poison;
  expect_moves(7, torch::kFloat, 1e-5);
  expect_moves(132, torch::kFloat, 1e-5);
  expect_moves(10, torch::kDouble, 1e-12);
  expect_moves(5, torch::kBFloat16, 1e-2);
  expect_moves(264, torch::kBFloat16, 1e-2);
  expect_moves(5, torch::kHalf, 2e-3);
  expect_moves(264, torch::kHalf, 2e-3);
}

/// Experts without rows, with one, with more than a tile, and rows past the last.
const std::vector<int32_t> kOffsets = {0, 0, 140, 141, 141, 260};
constexpr int64_t kRows = 300, kFilled = 260, kExperts = 5;

struct Problem {
  Tensor offsets = torch::tensor(kOffsets, torch::kInt);
  Tensor rows, grad;
  ExpertWeights weights;

  Problem(int64_t d, int64_t m, at::ScalarType type)
      : rows(randn({kRows, d}, 1, type)),
        grad(randn({kRows, d}, 6, type)),
        weights{randn({kExperts, d, m}, 2, type) * 0.2, randn({kExperts, m}, 3, type),
                randn({kExperts, m, d}, 4, type) * 0.2, randn({kExperts, d}, 5, type)} {}

  GroupedMlpArguments arguments(int64_t activation, bool keep_hidden, bool add_b2 = true) const {
    return {rows,       offsets,    weights.w1,  weights.b1, weights.w2,
            weights.b2, activation, keep_hidden, add_b2};
  }
  GroupedMlpBackwardArguments backward(const Tensor& hidden, int64_t activation) const {
    return {grad, rows, offsets, hidden, weights.w1, weights.b1, weights.w2, activation};
  }
};

Tensor activate(const Tensor& x, Act kind) {
  switch (kind) {
    case Act::relu:
      return at::relu(x);
    case Act::gelu_tanh:
      return at::gelu(x, "tanh");
    case Act::gelu:
      return at::gelu(x);
    case Act::cubic:
      return x * x * x;
    case Act::identity:
      return x + 0;
    case Act::celu:
      return at::celu(x);
    case Act::tanh:
      return at::tanh(x);
  }
  return x;
}

/// Output and gradients of rows, w1, b1, w2 and b2 in float64, by ATen; unused rows are zero.
std::vector<Tensor> wanted_of(const Problem& p, Act kind) {
  std::vector<Tensor> leaves;
  const auto& w = p.weights;
  for (const Tensor* leaf : {&p.rows, &w.w1, &w.b1, &w.w2, &w.b2}) {
    leaves.push_back(wide(*leaf).clone().set_requires_grad(true));
  }
  std::vector<Tensor> parts;
  for (int64_t e = 0; e < kExperts; ++e) {
    const Tensor x = leaves[0].slice(0, kOffsets[e], kOffsets[e + 1]);
    const Tensor h = activate(x.matmul(leaves[1][e]) + leaves[2][e], kind);
    parts.push_back(h.matmul(leaves[3][e]) + leaves[4][e]);
  }
  parts.push_back(torch::zeros({kRows - kFilled, p.rows.size(1)}, torch::kDouble));
  const Tensor y = torch::cat(parts);
  y.backward(wide(p.grad));
  std::vector<Tensor> out = {y.detach()};
  for (const Tensor& leaf : leaves) out.push_back(leaf.grad());
  return out;
}

std::vector<Tensor> found_of(const Problem& p, Act kind, bool is_grouped, Order order) {
  const SerialDevice device{order};
  const auto activation = static_cast<int64_t>(kind);
  const auto [y, hidden] =
      on_device::grouped_mlp_on(device, p.arguments(activation, /*keep_hidden=*/true), is_grouped);
  const auto [again, nothing] =
      on_device::grouped_mlp_on(device, p.arguments(activation, false), is_grouped);
  EXPECT_TRUE(torch::equal(y, again));
  Tensor before_bias = std::get<0>(on_device::grouped_mlp_on(
      device, p.arguments(activation, false, /*add_b2=*/false), is_grouped));
  for (int64_t e = 0; e < kExperts; ++e) {
    before_bias.slice(0, kOffsets[e], kOffsets[e + 1]) += p.weights.b2[e];
  }
  EXPECT_TRUE(torch::equal(y, before_bias));
  EXPECT_EQ(nothing.size(0), 0);
  EXPECT_EQ(wide(hidden.slice(0, kFilled)).abs().sum().item<double>(), 0.0);
  auto [rows, w1, b1, w2, b2] =
      on_device::grouped_mlp_backward_on(device, p.backward(hidden, activation), is_grouped);
  return {y, rows, w1, b1, w2, b2};
}

void expect_mlp(int64_t d, int64_t m, at::ScalarType type, double tolerance, Act kind,
                bool is_grouped = false) {
  const Problem problem(d, m, type);
  const auto wanted = wanted_of(problem, kind);
  std::vector<Tensor> first;
  for (const auto order : kOrders) {
    const auto found = found_of(problem, kind, is_grouped, order);
    if (first.empty()) first = found;
    for (size_t i = 0; i < wanted.size(); ++i) {
      SCOPED_TRACE("tensor " + std::to_string(i) + " of " + c10::toString(type));
      expect_close(wide(found[i]), wanted[i], tolerance);
      EXPECT_TRUE(torch::equal(found[i], first[i]));
      if (i == 0 || i == 1) {
        EXPECT_EQ(wide(found[i].slice(0, kFilled)).abs().sum().item<double>(), 0.0);
      } else {
        for (const int64_t idle : {0, 3}) {
          EXPECT_EQ(wide(found[i][idle]).abs().sum().item<double>(), 0.0);
        }
      }
    }
  }
}

TEST(GroupedMlpKernels, OutputAndGradientsEqualPlainProductsInEveryType) {
  const Poison poison;
  expect_mlp(7, 150, torch::kFloat, 1e-5, Act::gelu_tanh);
  expect_mlp(64, 20, torch::kDouble, 1e-12, Act::gelu);
  expect_mlp(16, 300, torch::kBFloat16, 2e-2, Act::gelu_tanh);
  expect_mlp(9, 13, torch::kBFloat16, 2e-2, Act::gelu_tanh);
  expect_mlp(16, 40, torch::kHalf, 4e-3, Act::gelu_tanh);
}

TEST(GroupedMlpKernels, EveryActivationIsItsOwnPass) {
  const Poison poison;
  for (int kind = 0; kind < 7; ++kind) {
    expect_mlp(6, 9, torch::kDouble, 1e-12, static_cast<Act>(kind));
  }
}

TEST(GroupedMlpKernels, GroupedProductsGiveTheSame) {
  const Poison poison;
  const Problem problem(16, 40, torch::kBFloat16);
  ASSERT_TRUE(suits_grouped_mm(problem.rows, problem.weights.w1));
  expect_mlp(16, 40, torch::kBFloat16, 2e-2, Act::gelu_tanh, /*is_grouped=*/true);
}

TEST(GroupedMlpKernels, GroupedProductsTakeWhatTheLibraryTakes) {
  const auto suits = [](at::ScalarType type, int64_t d, int64_t m, int64_t rows = 4) {
    return suits_grouped_mm(torch::zeros({rows, d}, type), torch::zeros({3, d, m}, type));
  };
  EXPECT_TRUE(suits(torch::kBFloat16, 16, 24));
  EXPECT_FALSE(suits(torch::kHalf, 16, 24));
  EXPECT_FALSE(suits(torch::kFloat, 16, 24));
  EXPECT_FALSE(suits(torch::kBFloat16, 12, 24));
  EXPECT_FALSE(suits(torch::kBFloat16, 16, 20));
  EXPECT_FALSE(suits(torch::kBFloat16, 16, 24, 0));
}

TEST(GroupedMlpKernels, NoRowsGiveNothingAndZeroGradients) {
  const Poison poison;
  Problem problem(8, 16, torch::kFloat);
  problem.offsets = torch::zeros({kExperts + 1}, torch::kInt);
  problem.rows = problem.grad = torch::zeros({0, 8});
  const SerialDevice device;
  const auto [y, hidden] =
      on_device::grouped_mlp_on(device, problem.arguments(1, /*keep_hidden=*/true), false);
  EXPECT_EQ(y.size(0), 0);
  auto [rows, w1, b1, w2, b2] =
      on_device::grouped_mlp_backward_on(device, problem.backward(hidden, 1), false);
  for (const Tensor& gradient : {w1, b1, w2, b2}) {
    EXPECT_EQ(gradient.abs().sum().item<double>(), 0.0);
  }
}

}  // namespace
}  // namespace moesaic::ops::kernels
