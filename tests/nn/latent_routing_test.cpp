// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/shallow_experts.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "moesaic/nn/init.h"
#include "support/tensors.h"

namespace moesaic::nn {
namespace {

using at::Tensor;
using testing::expect_close;
using testing::randn;

Routing route(const std::string& routing, const Tensor& router_Kd, const Tensor& x_Td,
              const std::vector<int64_t>& kept = {}) {
  const Router router(latent_router_options(x_Td.size(1), router_Kd.size(0), routing, kept),
                      make_generator(1));
  const torch::NoGradGuard no_grad;
  router->weight.copy_(router_Kd);
  return router->forward(x_Td).routing;
}

TEST(LatentRouterOptions, NameTheRoutingTheyWereMadeFor) {
  for (const char* routing : {kTopOne, kEveryAboveZero}) {
    EXPECT_EQ(latent_routing(latent_router_options(5, 3, routing, {0, 2})), routing);
    EXPECT_EQ(kept_experts(latent_router_options(5, 3, routing, {0, 2}).rule),
              (std::vector<int64_t>{0, 2}));
  }
}

TEST(LatentRouterOptions, TopOneIsTheLargestLogitWithItsSoftmax) {
  const Tensor router = randn({3, 5}, 1, torch::kFloat), x = randn({50, 5}, 2, torch::kFloat);
  const Tensor share = x.mm(router.t()).softmax(1);
  const Tensor weight_TK = combine_weights(route(kTopOne, router, x));
  const Tensor largest = share.ge(share.amax(1, true)).to(torch::kFloat);
  expect_close(weight_TK, share * largest, 1e-6);
}

TEST(LatentRouterOptions, TopOneBreaksTiesAtRandomAndTheirGatesAreEqual) {
  const Tensor weight_TK =
      combine_weights(route(kTopOne, torch::zeros({4, 5}), randn({4000, 5}, 2, torch::kFloat)));
  const Tensor chosen = weight_TK.gt(0);
  EXPECT_TRUE(chosen.sum(1).eq(1).all().item<bool>());
  EXPECT_GT(chosen.sum(0).min().item<int64_t>(), 850);
  expect_close(weight_TK.masked_select(chosen), torch::full({4000}, 0.25), 0.0);
}

TEST(LatentRouterOptions, AdaptiveTakesEveryLogitFromZeroOnWithTheGateOne) {
  const Tensor router = randn({3, 5}, 1, torch::kFloat);
  Tensor x = randn({50, 5}, 2, torch::kFloat);
  x[0].zero_();
  const Tensor weight_TK = combine_weights(route(kEveryAboveZero, router, x));
  expect_close(weight_TK, x.mm(router.t()).ge(0).to(torch::kFloat), 0.0);
  EXPECT_EQ(weight_TK[0].sum().item<float>(), 3.0F);
}

TEST(LatentRouterOptions, RemovedExpertsTakeNothing) {
  const Tensor router = randn({3, 5}, 1, torch::kFloat), x = randn({50, 5}, 2, torch::kFloat);
  const Tensor logits = x.mm(router.t()).index_select(1, torch::tensor({0, 2}));
  // Top one: the best of those that are left takes the sample.
  const Tensor top = combine_weights(route(kTopOne, router, x, {0, 2}));
  EXPECT_TRUE(top.gt(0).eq(logits.ge(logits.amax(1, true))).all().item<bool>());
  const Tensor adaptive = combine_weights(route(kEveryAboveZero, router, x, {0, 2}));
  expect_close(adaptive, logits.ge(0).to(torch::kFloat), 0.0);
}

}  // namespace
}  // namespace moesaic::nn
