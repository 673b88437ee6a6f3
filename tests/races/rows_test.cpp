// SPDX-License-Identifier: Apache-2.0
// Kernels of dispatch, combine and the grouped MLP by many threads: no race, and the CPU's results.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/grouped_mlp.h"
#include "moesaic/ops/route.h"
#include "ops/cuda/grouped_mlp_on.h"
#include "ops/kernels/move_rows.h"
#include "races/races_fixture.h"

namespace moesaic {
namespace {

using at::Tensor;
using ops::in;
using ops::out;
using testing::run_in_threads;
using testing::ThreadedDevice;

constexpr int64_t kTokens = 70;

class RowsRaces : public testing::RacesTest {
 protected:
  void SetUp() override {
    RacesTest::SetUp();
    at::manual_seed(1);
  }
};

/// Dispatch, combine with a bias and its gradient on rows of a width, `Count` numbers at once.
template <class T, int Count>
void move_rows(int64_t width, at::ScalarType type) {
  using namespace ops::kernels;
  const Routing routing = route(at::randn({kTokens, 6}), {.k = 3, .kept = {0, 2, 5}});
  const int64_t bound = routing.max_rows();
  const Tensor x = at::randn({kTokens, width}, type), bias = at::randn({3, width}, type);
  const Tensor rows = at::empty({bound, width}, type), y = at::empty({kTokens, width}, type);
  const Tensor grad_rows = at::empty_like(rows), grad_gate = at::empty_like(routing.gate);
  const auto* const token_offsets = in<int32_t>(routing.token_offsets);
  const auto* const token_row = in<int32_t>(routing.token_row);
  const auto* const gate = in<Sum<T>>(routing.gate);
  const RowBias<T> of_expert{in<T>(bias), in<int32_t>(routing.offsets), 3};
  const int lanes = lanes_for(width / Count, kWarp);
  const int64_t blocks = divide_up<int64_t>(kTokens * lanes, kMoveThreads);
  run_in_threads(DispatchRows<T, Count>{in<T>(x), token_offsets, token_row, out<T>(rows), kTokens,
                                        bound, width, lanes},
                 blocks, kMoveThreads, 0);
  EXPECT_TRUE(at::equal(rows, dispatch(x, routing)));
  run_in_threads(SumRows<T, Count>{in<T>(rows), gate, token_offsets, token_row, out<T>(y), kTokens,
                                   width, lanes, of_expert},
                 blocks, kMoveThreads, 0);
  using Backward = CombineBackward<T, Count>;
  run_in_threads(Backward{in<T>(x), in<T>(rows), gate, token_offsets, token_row, out<T>(grad_rows),
                          out<Sum<T>>(grad_gate), kTokens, bound, width, lanes, of_expert},
                 blocks, kMoveThreads, static_cast<size_t>(Backward::shared_bytes(kMoveThreads)));
  EXPECT_TRUE(grad_gate.isfinite().all().item<bool>());
  run_in_threads(ClearRows<T, Count>{out<T>(rows), token_offsets + kTokens, bound, width}, 2,
                 kMoveThreads, 0);
  EXPECT_EQ(rows.abs().sum(1).ne(0).sum().item<int64_t>(), routing.offsets[-1].item<int64_t>());
}

TEST_F(RowsRaces, DispatchAndCombine) {
  move_rows<float, 1>(7, at::kFloat);
  move_rows<float, 4>(264, at::kFloat);
  move_rows<ops::kernels::BFloat16, 8>(264, at::kBFloat16);
}

TEST_F(RowsRaces, GroupedMlpAndItsGradients) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t hidden : {48, 13}) {  // 16 bytes at once, and numbers one by one
      const Tensor offsets = at::tensor({0, 0, 140, 150}, at::kInt);
      const ExpertWeights w{at::randn({3, 16, hidden}, type), at::randn({3, hidden}, type),
                            at::randn({3, hidden, 16}, type), at::randn({3, 16}, type)};
      const Tensor rows = at::randn({170, 16}, type), gradient = at::randn({170, 16}, type);
      const auto activation = static_cast<int64_t>(Activation::gelu_tanh);
      const auto [y, kept] = ops::on_device::grouped_mlp_on(
          ThreadedDevice{},
          {rows, offsets, w.w1, w.b1, w.w2, w.b2, activation, /*keep_hidden=*/true}, false);
      const Tensor wanted = grouped_mlp(rows, offsets, w, Activation::gelu_tanh);
      const double tolerance = type == at::kFloat ? 1e-5 : 2e-2;
      EXPECT_LE((y - wanted).abs().max().item<double>(),
                tolerance * wanted.abs().max().item<double>());
      const auto gradients = ops::on_device::grouped_mlp_backward_on(
          ThreadedDevice{}, {gradient, rows, offsets, kept, w.w1, w.b1, w.w2, activation}, false);
      EXPECT_TRUE(std::get<1>(gradients).isfinite().all().item<bool>());
    }
  }
}

}  // namespace
}  // namespace moesaic
