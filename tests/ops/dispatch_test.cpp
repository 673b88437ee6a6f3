// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/dispatch.h"

#include "moesaic/base/error.h"
#include "moesaic/ops/route.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

TEST(Dispatch, CopiesEachTokenToItsRowsAndClearsTheRest) {
  const Routing routing = route(randn({300, 4}, 1, torch::kFloat), {.k = 2, .kept = {1, 3}});
  const at::Tensor x = randn({300, 5}, 2, torch::kFloat);
  const at::Tensor rows = dispatch(x, routing);
  const int64_t filled = routing.offsets[-1].item<int64_t>();
  ASSERT_EQ(rows.sizes(), (std::vector<int64_t>{routing.max_rows(), 5}));
  ASSERT_LT(filled, routing.max_rows());
  for (int64_t row = 0; row < filled; ++row) {
    EXPECT_TRUE(torch::equal(rows[row], x[routing.token[row].item<int64_t>()]));
  }
  EXPECT_EQ(rows.slice(0, filled).abs().sum().item<double>(), 0.0);
}

TEST(Dispatch, GradientsEqualFiniteDifferences) {
  const Routing routing = route(randn({6, 4}, 3), {.k = 2, .capacity = {.factor = 0.5}});
  at::Tensor x = randn({6, 3}, 4).set_requires_grad(true);
  expect_gradients([&](const auto& in) { return dispatch(in[0], routing); }, {x});
}

TEST(Dispatch, TakesNoTokens) {
  const Routing routing = route(torch::zeros({0, 4}), {.k = 2});
  EXPECT_EQ(dispatch(torch::zeros({0, 3}), routing).sizes(), (std::vector<int64_t>{0, 3}));
}

TEST(Dispatch, RefusesAnotherNumberOfTokens) {
  const Routing routing = route(torch::zeros({4, 2}), {.k = 1});
  EXPECT_THROW(dispatch(torch::zeros({5, 3}), routing), Error);
  EXPECT_THROW(dispatch(torch::zeros({4, 3}, torch::kLong), routing), Error);
}

}  // namespace
}  // namespace moesaic
