// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/router_product.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "ops/cpu/router_product.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::expect_close;
using testing::expect_gradients;
using testing::randn;

TEST(RouterProduct, EqualsTheProductInFloat64) {
  for (const auto& [tokens, width, experts] :
       {std::tuple{512, 50, 8}, std::tuple{1027, 7, 3}, std::tuple{2000, 192, 8},
        std::tuple{600, 768, 8}, std::tuple{5, 50, 8}, std::tuple{700, 50, 33}}) {
    const at::Tensor x = randn({tokens, width}, 1), w = randn({experts, width}, 2);
    expect_close(router_product(x, w), x.mm(w.t()), 1e-12);
    expect_close(router_product(x.to(torch::kFloat), w.to(torch::kFloat)), x.mm(w.t()), 2e-5);
  }
}

TEST(RouterProduct, GradientsEqualFiniteDifferencesWhereKernelsCompute) {
  const at::Tensor x = randn({514, 2}, 1).set_requires_grad(true);
  const at::Tensor w = randn({3, 2}, 2).set_requires_grad(true);
  ASSERT_TRUE(ops::suits_router_kernel(x, w));
  expect_gradients([](const auto& in) { return router_product(in[0], in[1]); }, {x, w});
}

TEST(RouterProduct, BitsDoNotDependOnThreads) {
  const at::Tensor x = randn({3001, 50}, 1, torch::kFloat), w = randn({8, 50}, 2, torch::kFloat);
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> logits;
  for (const int count : {1, 3}) {
    at::set_num_threads(count);
    logits.push_back(router_product(x, w));
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(torch::equal(logits[0], logits[1]));
}

TEST(RouterProduct, RefusesWhatDoesNotFit) {
  EXPECT_THROW(router_product(randn({4, 3}, 1), randn({2, 4}, 1)), Error);
  EXPECT_THROW(router_product(randn({4, 3}, 1), randn({2, 3}, 1, torch::kFloat)), Error);
  EXPECT_THROW(router_product(randn({4, 3}, 1), randn({2, 3}, 1).to(torch::kMeta)), Error);
}

}  // namespace
}  // namespace moesaic
