// SPDX-License-Identifier: Apache-2.0
// The GPU's kernels for dispatch, combine and the grouped MLP, run on the host in several orders of
// threads and blocks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/route_token_choice.h"
#include "ops/kernels/epilogue.h"
#include "ops/kernels/expert_rows.h"
#include "ops/kernels/grouped_product.h"
#include "ops/kernels/move_rows.h"
#include "support/poison.h"
#include "support/serial_device.h"
#include "support/tensors.h"

namespace moesaic::ops::kernels {
namespace {

using at::Tensor;
using moesaic::testing::expect_close;
using moesaic::testing::kOrders;
using moesaic::testing::Poison;
using moesaic::testing::randn;

template <class T>
struct TypeOf;
template <>
struct TypeOf<float> {
  static constexpr auto value = torch::kFloat;
  static constexpr double tolerance = 1e-5;
};
template <>
struct TypeOf<double> {
  static constexpr auto value = torch::kDouble;
  static constexpr double tolerance = 1e-12;
};
template <>
struct TypeOf<BFloat16> {
  static constexpr auto value = torch::kBFloat16;
  static constexpr double tolerance = 1e-2;
};

template <class T>
T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}
Tensor wide(const Tensor& tensor) {
  return tensor.to(torch::kDouble);
}

/// A routing with tokens of several rows, of none, and rows that are not used.
Routing some_routing(at::ScalarType gates) {
  const Tensor logits = randn({70, 6}, 1, gates);
  return route_token_choice(logits, {.k = 3, .kept = {0, 2, 5}});
}

template <class T, int Count>
void expect_moves(int64_t width) {
  const auto type = TypeOf<T>::value;
  const Routing routing = some_routing(type == torch::kDouble ? torch::kDouble : torch::kFloat);
  const int64_t tokens = routing.tokens(), bound = routing.row_bound();
  const int64_t filled = routing.offsets[-1].item<int64_t>();
  ASSERT_LT(filled, bound);
  const Tensor x = randn({tokens, width}, 2, type), rows = randn({bound, width}, 3, type);
  const Tensor grad = randn({tokens, width}, 4, type);
  Routing exact = routing;
  exact.gate = wide(routing.gate);
  const int lanes = lanes_for(width / Count, kWarp);
  const int64_t token_blocks = divide_up<int64_t>(tokens * lanes, kMoveThreads);
  const auto* token_offsets = data<int32_t>(routing.token_offsets);
  const auto* token_row = data<int32_t>(routing.token_row);
  for (const auto order : kOrders) {
    const Tensor dispatched = torch::empty({bound, width}, type);
    run_serially(
        GatherRows<T, Count>{data<T>(x), data<int32_t>(routing.token), token_offsets + tokens,
                             data<T>(dispatched), bound, width, lanes},
        divide_up<int64_t>(bound * lanes, kMoveThreads), kMoveThreads, 0, order);
    EXPECT_TRUE(torch::equal(wide(dispatched), dispatch(wide(x), exact)));

    const Tensor y = torch::empty({tokens, width}, type);
    run_serially(SumRows<T, Count>{data<T>(rows), data<Sum<T>>(routing.gate), token_offsets,
                                   token_row, data<T>(y), tokens, width, lanes},
                 token_blocks, kMoveThreads, 0, order);
    expect_close(wide(y), combine(wide(rows), exact), TypeOf<T>::tolerance);

    Tensor leaf = wide(rows).detach().clone().set_requires_grad(true);
    exact.gate = wide(routing.gate).detach().set_requires_grad(true);
    combine(leaf, exact).backward(wide(grad));
    const Tensor grad_rows = torch::empty({bound, width}, type);
    const Tensor grad_gate = torch::empty_like(routing.gate);
    run_serially(CombineBackward<T, Count>{data<T>(grad), data<T>(rows), data<Sum<T>>(routing.gate),
                                           token_offsets, token_row, data<T>(grad_rows),
                                           data<Sum<T>>(grad_gate), tokens, bound, width, lanes},
                 token_blocks, kMoveThreads,
                 static_cast<size_t>(CombineBackward<T, Count>::shared_bytes(kMoveThreads)), order);
    expect_close(wide(grad_rows), leaf.grad(), TypeOf<T>::tolerance);
    expect_close(wide(grad_gate), exact.gate.grad(), 1e-4);
    EXPECT_EQ(wide(grad_rows.slice(0, filled)).abs().sum().item<double>(), 0.0);

    const Tensor cleared = torch::ones({bound, width}, type);
    run_serially(ClearRows<T, Count>{data<T>(cleared), token_offsets + tokens, bound, width}, 2,
                 kMoveThreads, 0, order);
    EXPECT_EQ(wide(cleared).sum().item<int64_t>(), filled * width);
  }
}

TEST(MoveRowsKernels, EqualTheCpuInPiecesAndOneByOne) {
  const Poison poison;
  expect_moves<float, 1>(7);
  expect_moves<float, 4>(132);
  expect_moves<double, 2>(10);
  expect_moves<BFloat16, 1>(5);
  expect_moves<BFloat16, 8>(264);
}

/// Experts without rows, with one, with more than a tile, and rows past the last.
const std::vector<int32_t> kOffsets = {0, 0, 140, 141, 141, 260};
constexpr int64_t kRows = 300;
constexpr int32_t kExperts = 5;

template <class T>
struct Problem {
  Tensor offsets = torch::tensor(kOffsets, torch::kInt);
  Tensor rows, w1, b1, w2, b2, grad;
  int64_t d, m;
  Act kind;

  Problem(int64_t d_, int64_t m_, Act kind_)
      : rows(randn({kRows, d_}, 1, TypeOf<T>::value)),
        w1(randn({kExperts, d_, m_}, 2, TypeOf<T>::value) * 0.2),
        b1(randn({kExperts, m_}, 3, TypeOf<T>::value)),
        w2(randn({kExperts, m_, d_}, 4, TypeOf<T>::value) * 0.2),
        b2(randn({kExperts, d_}, 5, TypeOf<T>::value)),
        grad(randn({kRows, d_}, 6, TypeOf<T>::value)),
        d(d_),
        m(m_),
        kind(kind_) {}

  const int32_t* at() const { return data<int32_t>(offsets); }
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

template <class T>
using TileFor = std::conditional_t<std::is_same_v<T, double>, SmallTile, LargeTile>;

template <class T, class Kernel>
void run_product(const Kernel& kernel, Order order) {
  run_serially(kernel, kernel.blocks(), TileFor<T>::kThreads,
               static_cast<size_t>(Kernel::Product::shared_bytes()), order);
}

/// Values of the filled rows only: products leave the others alone.
void expect_filled(const Tensor& found, const Tensor& wanted, double tolerance) {
  expect_close(wide(found.slice(0, 0, kOffsets.back())), wanted, tolerance);
}

template <class T>
void expect_products(const Problem<T>& p, Order order) {
  const auto type = TypeOf<T>::value;
  const double tolerance = TypeOf<T>::tolerance;
  const int64_t d = p.d, m = p.m;
  const Tensor hidden = torch::empty({kRows, m}, type), active = torch::empty({kRows, m}, type);
  const Tensor y = torch::empty({kRows, d}, type), grad_rows = torch::empty({kRows, d}, type);
  const Tensor grad_hidden = torch::empty({kRows, m}, type);
  const Tensor active_again = torch::empty({kRows, m}, type);
  const Tensor dw1 = torch::empty_like(p.w1), dw2 = torch::empty_like(p.w2);
  using Tile = TileFor<T>;
  run_product<T>(
      RowsTimesWeights<T, Tile, false, AddBiasActivate<T>>{
          data<T>(p.rows),
          data<T>(p.w1),
          p.at(),
          kExperts,
          kRows,
          d,
          m,
          {data<T>(hidden), data<T>(active), data<T>(p.b1), m, p.kind}},
      order);
  run_product<T>(RowsTimesWeights<T, Tile, false, AddBias<T>>{data<T>(active),
                                                              data<T>(p.w2),
                                                              p.at(),
                                                              kExperts,
                                                              kRows,
                                                              m,
                                                              d,
                                                              {data<T>(y), data<T>(p.b2), d}},
                 order);
  run_product<T>(
      RowsTimesWeights<T, Tile, true, ActivationGradient<T>>{
          data<T>(p.grad),
          data<T>(p.w2),
          p.at(),
          kExperts,
          kRows,
          d,
          m,
          {data<T>(hidden), data<T>(grad_hidden), data<T>(active_again), m, p.kind}},
      order);
  run_product<T>(RowsTimesWeights<T, Tile, true, Plain<T>>{data<T>(grad_hidden),
                                                           data<T>(p.w1),
                                                           p.at(),
                                                           kExperts,
                                                           kRows,
                                                           m,
                                                           d,
                                                           {data<T>(grad_rows), d}},
                 order);
  run_product<T>(RowsTimesRows<T, Tile>{data<T>(p.rows), data<T>(grad_hidden), p.at(), kExperts, d,
                                        m, data<T>(dw1)},
                 order);
  run_product<T>(RowsTimesRows<T, Tile>{data<T>(active), data<T>(p.grad), p.at(), kExperts, m, d,
                                        data<T>(dw2)},
                 order);

  std::vector<Tensor> leaves;
  for (const Tensor* leaf : {&p.rows, &p.w1, &p.b1, &p.w2, &p.b2}) {
    leaves.push_back(wide(*leaf).clone().set_requires_grad(true));
  }
  std::vector<Tensor> parts;
  for (int32_t e = 0; e < kExperts; ++e) {
    const Tensor x = leaves[0].slice(0, kOffsets[e], kOffsets[e + 1]);
    const Tensor h = activate(x.matmul(leaves[1][e]) + leaves[2][e], p.kind);
    parts.push_back(h.matmul(leaves[3][e]) + leaves[4][e]);
  }
  const Tensor wanted = torch::cat(parts);
  wanted.backward(wide(p.grad.slice(0, 0, kOffsets.back())));
  expect_filled(y, wanted.detach(), tolerance);
  expect_filled(grad_rows, leaves[0].grad().slice(0, 0, kOffsets.back()), tolerance);
  if constexpr (!std::is_same_v<T, BFloat16>) {  // there, `hidden` was rounded in between
    expect_filled(active_again, wide(active.slice(0, 0, kOffsets.back())), tolerance);
  }
  expect_close(wide(dw1), leaves[1].grad(), tolerance);
  expect_close(wide(dw2), leaves[3].grad(), tolerance);

  for (const auto& [from, leaf, columns] :
       {std::tuple{grad_hidden, leaves[2], m}, std::tuple{p.grad, leaves[4], d}}) {
    const Tensor out = torch::empty({kExperts, columns}, type);
    SumTiles<T> tiles{data<T>(from), p.at(), kExperts, kRows, columns, nullptr};
    const Tensor partial = torch::empty({tiles.tiles(), columns},
                                        type == torch::kDouble ? torch::kDouble : torch::kFloat);
    tiles.partial = data<Sum<T>>(partial);
    run_serially(tiles, tiles.blocks(), kPassThreads, 0, order);
    const SumPartials<T> sums{data<Sum<T>>(partial), p.at(), kExperts, columns, data<T>(out)};
    run_serially(sums, sums.blocks(), kPassThreads, 0, order);
    expect_close(wide(out), leaf.grad(), tolerance);
    EXPECT_EQ(wide(out[0]).abs().sum().item<double>(), 0.0);
  }
  for (const Tensor* weight : {&dw1, &dw2}) {
    EXPECT_EQ(wide((*weight)[0]).abs().sum().item<double>(), 0.0);
    EXPECT_EQ(wide((*weight)[3]).abs().sum().item<double>(), 0.0);
  }
}

TEST(ExpertKernels, ProductsAndTheirGradientsEqualPlainProducts) {
  const Poison poison;
  for (const auto order : kOrders) {
    expect_products(Problem<float>(7, 150, Act::gelu_tanh), order);
    expect_products(Problem<double>(65, 20, Act::gelu), order);
    expect_products(Problem<BFloat16>(16, 40, Act::relu), order);
  }
  for (const auto kind : {Act::relu, Act::cubic, Act::identity, Act::celu, Act::tanh}) {
    expect_products(Problem<double>(6, 9, kind), Order::forward);
  }
}

TEST(ExpertKernels, PassesEqualTheEpiloguesOfProducts) {
  const Poison poison;
  constexpr int64_t kColumns = 48;
  const Tensor offsets = torch::tensor(kOffsets, torch::kInt);
  const Tensor product = randn({kRows, kColumns}, 1, torch::kBFloat16);
  const Tensor bias = randn({kExperts, kColumns}, 2, torch::kBFloat16);
  for (const auto order : kOrders) {
    std::vector<Tensor> found;
    const auto run = [&](auto count) {
      constexpr int kCount = decltype(count)::value;
      const Tensor hidden = torch::empty_like(product), active = torch::empty_like(product);
      const EpiloguePass<BFloat16, kCount, AddBiasActivate<BFloat16>> kernel{
          data<BFloat16>(product),
          data<int32_t>(offsets),
          kExperts,
          kRows,
          kColumns,
          lanes_for(kColumns / kCount, kPassThreads),
          {data<BFloat16>(hidden), data<BFloat16>(active), data<BFloat16>(bias), kColumns,
           Act::gelu_tanh}};
      run_serially(kernel, kernel.blocks(), kPassThreads, 0, order);
      found.push_back(active.slice(0, 0, kOffsets.back()));
      found.push_back(hidden.slice(0, 0, kOffsets.back()));
    };
    run(std::integral_constant<int, 1>());
    run(std::integral_constant<int, 8>());
    EXPECT_TRUE(torch::equal(found[0], found[2]));
    EXPECT_TRUE(torch::equal(found[1], found[3]));
    for (int32_t e = 0; e < kExperts; ++e) {
      const Tensor wanted = wide(product.slice(0, kOffsets[e], kOffsets[e + 1])) + wide(bias[e]);
      expect_close(wide(found[1].slice(0, kOffsets[e], kOffsets[e + 1])), wanted, 1e-2);
      expect_close(wide(found[0].slice(0, kOffsets[e], kOffsets[e + 1])), at::gelu(wanted, "tanh"),
                   1e-2);
    }
  }
}

TEST(ExpertKernels, ZerosReachIdleExpertsOnly) {
  const Tensor offsets = torch::tensor(kOffsets, torch::kInt);
  const Tensor to = torch::ones({kExperts, 1000}, torch::kBFloat16);
  const ClearIdleExperts<BFloat16> kernel{data<BFloat16>(to), data<int32_t>(offsets), kExperts,
                                          1000, 3};
  run_serially(kernel, kernel.blocks(), kPassThreads, 0, Order::shuffled);
  EXPECT_TRUE(torch::equal(wide(to).sum(1),
                           torch::tensor({0.0, 1000.0, 1000.0, 0.0, 1000.0}, torch::kDouble)));
}

}  // namespace
}  // namespace moesaic::ops::kernels
