// SPDX-License-Identifier: Apache-2.0
// Experts against plain loops in float64.
#include "moesaic/nn/init.h"
#include "moesaic/ops/route.h"
#include "moesaic/papers/clusters.h"
#include "nn/experts_fixture.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using namespace experts_test;  // NOLINT(google-build-using-namespace): the fixture of such tests

nn::FilterExperts small_filters() {
  nn::FilterExperts experts(ClusterMoEConfig{.num_patches = 3, .width = 4, .num_filters = 6},
                            kExperts, nn::make_generator(1));
  randomise(*experts);
  return experts;
}

TEST(FilterExperts, AreSumsOverPatchesAndFiltersByLoops) {
  nn::FilterExperts experts = small_filters();
  const at::Tensor x = randn({kTokens, 3, 4}, 3);
  const Routing routing = small_routing();
  const at::Tensor wanted = by_loops(combine_weights(routing), [&](int64_t t, int64_t e) {
    at::Tensor sums = torch::zeros({2}, torch::kDouble);
    for (int64_t p = 0; p < 3; ++p) {
      const at::Tensor seen = experts->w[e].t().mv(x[t][p]) + experts->b[e];
      for (int64_t j = 0; j < 6; ++j) sums[j / 3] += seen[j].pow(3);
    }
    return sums;
  });
  const nn::ExpertsOutput found = nn::mixture(*experts, x, routing, {});
  expect_close(found.y_To, wanted, 1e-9);
  EXPECT_FALSE(found.embedding_Td.defined());
  const nn::ExpertRows rows = nn::expert_rows(*experts, x, routing, {});
  expect_close(nn::combine_rows(rows, routing).y_To, wanted, 1e-9);
}

TEST(FilterExperts, CountWhatTheyCostAndWeigh) {
  nn::FilterExperts experts = small_filters();
  EXPECT_EQ(experts->flops_per_row(), 2.0 * 3 * 4 * 6);
  for (int64_t e = 0; e < kExperts; ++e) {
    EXPECT_NEAR(magnitude(*experts, e), mean_column_norm(experts->w[e]), 1e-12);
  }
  check_keep(*experts, randn({kTokens, 3, 4}, 3));
}

nn::ImageExperts small_networks() {
  const nn::ImageNetworkOptions options{.channels = 2, .side = 4, .num_classes = 3, .width = 0.05};
  nn::ImageExperts experts("cnn", kExperts, options, nn::make_generator(1));
  randomise(*experts);
  return experts;
}

/// The largest of each 2 x 2, [C, S, S] -> [C, S / 2, S / 2].
at::Tensor pooled(const at::Tensor& x_CHW) {
  return x_CHW.view({x_CHW.size(0), x_CHW.size(1) / 2, 2, x_CHW.size(2) / 2, 2}).amax({2, 4});
}

/// A convolution of 3 x 3 with a border of zeros, one output at a time, and ReLU.
at::Tensor convolved(const at::Tensor& x_CHW, const at::Tensor& weight, const at::Tensor& bias) {
  const int64_t side = x_CHW.size(1);
  const at::Tensor padded = torch::constant_pad_nd(x_CHW, {1, 1, 1, 1});
  at::Tensor y = torch::zeros({weight.size(0), side, side}, torch::kDouble);
  for (int64_t o = 0; o < weight.size(0); ++o) {
    for (int64_t i = 0; i < side; ++i) {
      for (int64_t j = 0; j < side; ++j) {
        const at::Tensor window = padded.slice(1, i, i + 3).slice(2, j, j + 3);
        y[o][i][j] = (window * weight[o]).sum() + bias[o];
      }
    }
  }
  return y.relu();
}

TEST(ImageExperts, AreConvolutionalNetworksByLoops) {
  const torch::NoGradGuard no_grad;
  nn::ImageExperts experts = small_networks();
  const at::Tensor x = randn({kTokens, 2, 4, 4}, 3);
  const Routing routing = small_routing();
  const auto features = [&](int64_t t, int64_t e) {
    const auto of = experts->network(e)->named_parameters();
    const at::Tensor first = pooled(convolved(x[t], of["first.weight"], of["first.bias"]));
    return pooled(convolved(first, of["second.weight"], of["second.bias"])).flatten();
  };
  const at::Tensor weights = combine_weights(routing);
  const nn::ExpertsOutput found = nn::mixture(*experts, x, routing, {});
  expect_close(found.y_To,
               by_loops(weights,
                        [&](int64_t t, int64_t e) {
                          const auto& head = experts->network(e)->head;
                          return head->weight.mv(features(t, e)) + head->bias;
                        }),
               1e-9);
  expect_close(found.embedding_Td, by_loops(weights.ne(0).to(torch::kDouble), features), 1e-9);
}

TEST(ImageExperts, CountWhatTheyCostAndWeigh) {
  nn::ImageExperts experts = small_networks();
  EXPECT_EQ(experts->flops_per_row(), experts->network(0)->flops());
  for (int64_t e = 0; e < kExperts; ++e) {
    double sum = 0.0, neurons = 0.0;
    for (const at::Tensor& parameter : experts->network(e)->parameters()) {
      for (int64_t o = 0; parameter.dim() > 1 && o < parameter.size(0); ++o) {
        sum += norm_of(parameter[o]);
        neurons += 1.0;
      }
    }
    EXPECT_NEAR(magnitude(*experts, e), sum / neurons, 1e-12);
  }
  const auto second = experts->network(2);
  check_keep(*experts, randn({kTokens, 2, 4, 4}, 3));
  EXPECT_EQ(experts->network(1), second);
  EXPECT_TRUE(experts->named_parameters().contains("1.first.weight"));
  EXPECT_FALSE(experts->named_parameters().contains("2.first.weight"));
}

TEST(ImageExperts, RowsOfNobodyAreZero) {
  const torch::NoGradGuard no_grad;
  nn::ImageExperts experts = small_networks();
  const at::Tensor x = randn({kTokens, 2, 4, 4}, 3);
  const at::Tensor logits = torch::zeros({kTokens, kExperts + 1}, torch::kDouble);
  logits.select(1, kExperts).fill_(1.0);  // all choose an expert that is not there
  const Routing routing = route(logits, {.k = 1, .kept = {0, 1, 2}});
  const nn::ExpertsOutput found = nn::mixture(*experts, x, routing, {});
  EXPECT_TRUE(torch::equal(found.y_To, torch::zeros({kTokens, 3}, torch::kDouble)));
  EXPECT_EQ(found.embedding_Td.abs().max().item<double>(), 0.0);
}

}  // namespace
}  // namespace moesaic
