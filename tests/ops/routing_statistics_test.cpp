// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/routing.h"

#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/ops/route.h"
#include "ops/route_reference.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::token_choice_reference;

TEST(DispatchEntropy, EqualsPlainLoops) {
  const at::Tensor logits = randn({200, 4}, 6, torch::kFloat);
  const RouteOptions options{.k = 1, .capacity = {.factor = 0.9}, .kept = {0, 1, 3}};
  const Routing routing = route(logits, options);
  const auto reference = token_choice_reference(logits, options);
  const at::Tensor cluster = torch::arange(200).remainder(7).clamp_max(4);
  std::vector<std::vector<double>> n(5, std::vector<double>(3, 0.0));
  double total = 0;
  for (int64_t t = 0; t < 200; ++t) {
    for (size_t slot = 0; slot < 3; ++slot) {
      const double routed = reference.routed[t][options.kept[slot]] ? 1.0 : 0.0;
      n[cluster[t].item<int64_t>()][slot] += routed;
      total += routed;
    }
  }
  const at::Tensor counts = dispatch_counts(routing, cluster, 5);
  double wanted = 0;
  for (size_t slot = 0; slot < 3; ++slot) {
    double of_expert = 0;
    for (size_t k = 0; k < 5; ++k) of_expert += n[k][slot];
    for (size_t k = 0; k < 5; ++k) {
      EXPECT_EQ(counts[k][slot].item<double>(), n[k][slot]);
      if (n[k][slot] > 0) {
        wanted -= of_expert / total * n[k][slot] / of_expert * std::log(n[k][slot] / of_expert);
      }
    }
  }
  EXPECT_NEAR(dispatch_entropy(counts).item<double>(), wanted, 1e-6);
}

TEST(DispatchEntropy, IsZeroForPureExpertsAndTheLogarithmForIndifferentOnes) {
  const at::Tensor cluster = torch::arange(40).remainder(4);
  const at::Tensor pure = at::one_hot(cluster, 6).to(torch::kFloat);
  const auto entropy = [](const Routing& routing, const at::Tensor& clusters) {
    return dispatch_entropy(dispatch_counts(routing, clusters, 4)).item<double>();
  };
  EXPECT_EQ(entropy(route(pure, {.k = 1}), cluster), 0.0);
  const Routing blind = route(torch::zeros({40, 6}), {.k = 1});
  EXPECT_NEAR(entropy(blind, cluster), std::log(4.0), 1e-6);
  const Routing none = route(torch::zeros({0, 6}), {.k = 1});
  EXPECT_EQ(entropy(none, cluster.slice(0, 0, 0)), 0.0);
}

TEST(DispatchEntropy, RefusesWrongClusters) {
  const Routing routing = route(torch::zeros({4, 2}), {.k = 1});
  EXPECT_THROW(dispatch_counts(routing, torch::zeros({3}, torch::kLong), 2), Error);
  EXPECT_THROW(dispatch_counts(routing, torch::zeros({4}), 2), Error);
  EXPECT_THROW(dispatch_counts(routing, torch::full({4}, 2, torch::kLong), 2), Error);
  EXPECT_THROW(dispatch_counts(routing, torch::zeros({4}, torch::kLong), 0), Error);
}

}  // namespace
}  // namespace moesaic
