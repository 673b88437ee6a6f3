// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/combine.h"

#include "moesaic/base/error.h"
#include "moesaic/ops/route.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

TEST(Combine, IsTheGatedSumAndZeroForTokensWithoutAnExpert) {
  const Routing routing = route(randn({50, 4}, 1), {.k = 2, .kept = {2}});
  const at::Tensor rows = randn({routing.max_rows(), 9}, 2);
  at::Tensor wanted = torch::zeros({50, 9}, torch::kDouble);
  const int64_t filled = routing.offsets[-1].item<int64_t>();
  std::vector<bool> touched(50, false);
  for (int64_t row = 0; row < filled; ++row) {
    const int64_t t = routing.token[row].item<int64_t>();
    wanted[t] += routing.gate[row] * rows[row];
    touched[t] = true;
  }
  const at::Tensor y = combine(rows, routing);
  expect_close(y, wanted, 1e-14);
  for (int64_t t = 0; t < 50; ++t) {
    if (!touched[t]) {
      EXPECT_EQ(y[t].abs().sum().item<double>(), 0.0);
    }
  }
}

TEST(Combine, GradientsOfRowsAndGatesEqualFiniteDifferences) {
  at::Tensor logits = randn({6, 4}, 3).set_requires_grad(true);
  at::Tensor rows = randn({12, 11}, 4).set_requires_grad(true);
  expect_gradients([&](const auto& in) { return combine(in[1], route(in[0], {.k = 2})); },
                   {logits, rows});
}

TEST(Combine, RefusesRowsThatDoNotBelongToTheRouting) {
  const Routing routing = route(torch::zeros({4, 2}), {.k = 1});
  EXPECT_THROW(combine(torch::zeros({5, 3}), routing), Error);
  EXPECT_THROW(combine(torch::zeros({4, 3}, torch::kDouble), routing), Error);
}

}  // namespace
}  // namespace moesaic
