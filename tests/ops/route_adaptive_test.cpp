// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/route.h"

#include <limits>

#include "ops/route_reference.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::adaptive_reference;
using testing::expect_routing;

const RouteOptions kThreshold{.kind = RoutingKind::threshold};

void expect_adaptive(const at::Tensor& logits, double threshold,
                     const std::vector<int64_t>& kept = {}) {
  expect_routing(
      route(logits, {.kind = RoutingKind::threshold, .threshold = threshold, .kept = kept}),
      adaptive_reference(logits, threshold, kept), kept);
}

TEST(RouteAdaptive, EqualsPlainLoopsOverASweep) {
  uint64_t seed = 0;
  for (const int64_t tokens : {0, 1, 40, 1500}) {
    for (const int64_t experts : {1, 3, 8}) {
      for (const double threshold : {-1.0, 0.0, 1.5, 100.0, -100.0}) {
        expect_adaptive(randn({tokens, experts}, ++seed, torch::kFloat), threshold);
        expect_adaptive(randn({tokens, experts}, ++seed), threshold);
      }
    }
  }
  expect_adaptive(randn({50, 8}, 1, torch::kFloat), 0.0, {0, 3, 7});
}

TEST(RouteAdaptive, TakesLogitsOfExactlyTheThreshold) {
  const at::Tensor logits = torch::tensor({{0.0, -0.0, -1.0}, {-1.0, -1.0, -1.0}});
  const Routing routing = route(logits, {.kind = RoutingKind::threshold, .threshold = 0.0});
  EXPECT_TRUE(torch::equal(routing.offsets, torch::tensor({0, 1, 2, 2}, torch::kInt)));
  EXPECT_TRUE(torch::equal(routing.token_offsets, torch::tensor({0, 2, 2}, torch::kInt)));
}

TEST(RouteAdaptive, ResultsDoNotDependOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  const at::Tensor logits = randn({5000, 6}, 4, torch::kFloat);
  at::set_num_threads(1);
  const Routing one = route(logits, kThreshold);
  at::set_num_threads(5);
  testing::expect_same_routing(one, route(logits, kThreshold));
  at::set_num_threads(threads);
}

TEST(RouteAdaptive, ItsGatesAreConstants) {
  const at::Tensor logits = randn({5, 3}, 4).set_requires_grad(true);
  EXPECT_FALSE(route(logits, kThreshold).gate.requires_grad());
}

TEST(RouteAdaptive, TheMetaDeviceKnowsTheShapes) {
  const at::Tensor logits = randn({9, 5}, 4, torch::kFloat);
  const RouteOptions options{.kind = RoutingKind::threshold, .kept = {1, 2}};
  testing::expect_same_shapes(route(logits, options), route(logits.to(torch::kMeta), options));
}

TEST(RouteAdaptive, RefusesWrongInput) {
  const at::Tensor logits = torch::zeros({4, 3});
  EXPECT_THROW(route(logits[0], kThreshold), Error);
  EXPECT_THROW(route(logits.to(torch::kLong), kThreshold), Error);
  EXPECT_THROW(route(logits, {.kind = RoutingKind::threshold, .threshold = std::nan("")}), Error);
  EXPECT_THROW(route(logits, {.kind = RoutingKind::threshold, .kept = {1, 1}}), Error);
  EXPECT_THROW(route(torch::zeros({1, 4}).expand({int64_t{1} << 30, 4}), kThreshold), Error);
  at::Tensor bad = torch::zeros({4, 3});
  bad[3][2] = std::nan("");
  EXPECT_THROW(route(bad, kThreshold), DivergedError);
  EXPECT_NO_THROW(route(torch::full({2, 2}, std::numeric_limits<double>::infinity()), kThreshold));
}

}  // namespace
}  // namespace moesaic
