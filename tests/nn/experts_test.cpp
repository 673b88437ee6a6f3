// SPDX-License-Identifier: Apache-2.0
// Each kind of experts against plain loops in float64.
#include "moesaic/nn/experts.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/nn/filter_experts.h"
#include "moesaic/nn/image_experts.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/mlp_experts.h"
#include "moesaic/nn/pattern_experts.h"
#include "moesaic/ops/route_token_choice.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::expect_close;
using testing::randn;

constexpr int64_t kTokens = 9, kExperts = 3;

/// Two of three experts for each token, with room for few.
Routing small_routing() {
  return route_token_choice(randn({kTokens, kExperts}, 2),
                            {.k = 2, .capacity_factor = 0.5, .capacity_multiple_of = 1});
}

void randomise(torch::nn::Module& experts) {
  const torch::NoGradGuard no_grad;
  experts.to(torch::kDouble);
  uint64_t seed = 10;
  for (at::Tensor& parameter : experts.parameters()) {
    parameter.copy_(randn(parameter.sizes().vec(), ++seed) * 0.5);
  }
}

/// Sum over experts of weight times what `output` says of a token and an expert, by a loop over
/// both.
template <class Output>
at::Tensor by_loops(const at::Tensor& weight_TK, const Output& output) {
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < weight_TK.size(0); ++t) {
    at::Tensor sum = torch::zeros_like(output(t, 0));
    for (int64_t e = 0; e < weight_TK.size(1); ++e) {
      const auto weight = weight_TK[t][e].item<double>();
      if (weight != 0.0) sum = sum + weight * output(t, e);
    }
    rows.push_back(sum);
  }
  return torch::stack(rows);
}

double norm_of(const at::Tensor& values) {
  const at::Tensor flat = values.detach().to(torch::kDouble).flatten().contiguous();
  double sum = 0.0;
  for (int64_t i = 0; i < flat.numel(); ++i) {
    sum += flat.const_data_ptr<double>()[i] * flat.const_data_ptr<double>()[i];
  }
  return std::sqrt(sum);
}

/// Mean norm of the columns of [d, J].
double mean_column_norm(const at::Tensor& w_dJ) {
  double sum = 0.0;
  for (int64_t j = 0; j < w_dJ.size(1); ++j) sum += norm_of(w_dJ.select(1, j));
  return sum / static_cast<double>(w_dJ.size(1));
}

double magnitude(const nn::Experts& experts, int64_t slot) {
  return nn::neuron_magnitude(experts.matrices(slot, nn::own_values));
}

/// Two experts of three, with the outputs that they had and those of the gone one missing.
void check_keep(nn::Experts& experts, const at::Tensor& x) {
  const at::Tensor logits = randn({kTokens, kExperts}, 2);
  const Routing all = route_token_choice(logits, {.k = 1});
  const at::Tensor before = experts.forward(x, all, {}).y_To.detach();
  const std::array norms = {magnitude(experts, 0), magnitude(experts, 2)};
  experts.keep({0, 2});
  EXPECT_EQ(experts.count(), 2);
  const Routing left = route_token_choice(logits, {.k = 1, .kept = {0, 2}});
  const at::Tensor after = experts.forward(x, left, {}).y_To;
  const at::Tensor lost = all.choice.squeeze(1).eq(1).view({-1, 1});
  ASSERT_GT(lost.sum().item<int64_t>(), 0);
  expect_close(after, before.masked_fill(lost, 0.0), 1e-12);
  EXPECT_EQ((std::array{magnitude(experts, 0), magnitude(experts, 1)}), norms);
  after.sum().backward();  // what is left has gradients of its own size
  for (const at::Tensor& parameter : experts.parameters()) {
    if (!parameter.grad().defined()) continue;
    EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
  }
}

TEST(Experts, SplitAnyRowsAndLeaveZerosBehindThem) {
  Routing routing;
  routing.offsets = torch::tensor({0, 2, 2, 3}, torch::kInt);
  const at::Tensor rows = torch::arange(8, torch::kDouble).view({4, 2});
  std::vector<int64_t> sizes;
  const nn::ExpertRows found =
      nn::for_each_expert(rows, routing, [&](int64_t slot, const at::Tensor& own) {
        sizes.push_back(own.size(0));
        if (own.size(0) == 0) return nn::ExpertRows{};
        return nn::ExpertRows{own * static_cast<double>(slot + 1)};
      });
  EXPECT_EQ(sizes, (std::vector<int64_t>{2, 0, 1}));
  const at::Tensor wanted =
      torch::tensor({0.0, 1.0, 2.0, 3.0, 12.0, 15.0, 0.0, 0.0}, torch::kDouble).view({4, 2});
  EXPECT_TRUE(torch::equal(found.outputs, wanted));
  EXPECT_FALSE(found.embeddings.defined());
}

TEST(Experts, OfAKindWithoutTorchScriptSaySo) {
  const nn::PatternExperts experts(2, 3, 4, 1.0, nn::make_generator(1));
  EXPECT_THROW(experts->script_source(), Error);
}

TEST(MlpExperts, AreTwoLayersByLoops) {
  for (const bool bfloat16 : {false, true}) {
    nn::MlpExperts experts(
        nn::MlpExpertsOptions{.experts = kExperts, .width = 4, .hidden = 5, .bfloat16 = bfloat16},
        nn::make_generator(1));
    randomise(*experts);
    const at::Tensor x = randn({kTokens, 4}, 3);
    const Routing routing = small_routing();
    const at::Tensor wanted = by_loops(combine_weights(routing), [&](int64_t t, int64_t e) {
      const at::Tensor hidden = at::gelu(experts->w1[e].t().mv(x[t]) + experts->b1[e], "tanh");
      return experts->w2[e].t().mv(hidden) + experts->b2[e];
    });
    expect_close(experts->forward(x, routing, {}).y_To, wanted, bfloat16 ? 2e-2 : 1e-9);
  }
}

TEST(MlpExperts, CountWhatTheyCostAndWeigh) {
  nn::MlpExperts experts(nn::MlpExpertsOptions{.experts = kExperts, .width = 4, .hidden = 5},
                         nn::make_generator(1));
  randomise(*experts);
  EXPECT_EQ(experts->flops_per_row(), 2.0 * (4 * 5 + 5 * 4));
  for (int64_t e = 0; e < kExperts; ++e) {
    EXPECT_NEAR(magnitude(*experts, e), mean_column_norm(experts->w1[e]), 1e-12);
  }
  check_keep(*experts, randn({kTokens, 4}, 3));
  EXPECT_EQ(experts->flops_per_row(), 2.0 * (4 * 5 + 5 * 4));
}

nn::FilterExperts small_filters() {
  nn::FilterExperts experts(
      nn::FilterExpertsOptions{
          .experts = kExperts, .patches = 3, .width = 4, .filters = 6, .outputs = 2},
      nn::make_generator(1));
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
  const nn::ExpertsOutput found = experts->forward(x, routing, {});
  expect_close(found.y_To, wanted, 1e-9);
  EXPECT_FALSE(found.embedding_Td.defined());
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
  const nn::ImageNetworkOptions options{.channels = 2, .side = 4, .classes = 3, .width = 0.05};
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
  const nn::ExpertsOutput found = experts->forward(x, routing, {});
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
  const Routing routing = route_token_choice(logits, {.k = 1, .kept = {0, 1, 2}});
  const nn::ExpertsOutput found = experts->forward(x, routing, {});
  EXPECT_TRUE(torch::equal(found.y_To, torch::zeros({kTokens, 3}, torch::kDouble)));
  EXPECT_EQ(found.embedding_Td.abs().max().item<double>(), 0.0);
}

}  // namespace
}  // namespace moesaic
