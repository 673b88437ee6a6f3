// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/routed_mlp.h"

#include "moesaic/base/error.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/route.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

ExpertWeights weights_of(int64_t experts, int64_t width, int64_t hidden, at::ScalarType type) {
  return {randn({experts, width, hidden}, 11, type) * 0.2, randn({experts, hidden}, 12, type),
          randn({experts, hidden, width}, 13, type) * 0.2, randn({experts, width}, 14, type)};
}

at::Tensor in_three_steps(const at::Tensor& x, const Routing& routing, const ExpertWeights& w) {
  return combine(grouped_mlp(dispatch(x, routing), routing.offsets, w, Activation::gelu), routing);
}

TEST(RoutedMlp, EqualsItsThreeStepsBitForBit) {
  const torch::NoGradGuard no_grad;
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const ExpertWeights w = weights_of(5, 10, 36, type);
    for (const double capacity : {0.0, 0.6}) {
      const Routing routing =
          route(randn({130, 5}, 2, type), {.k = 2, .capacity = {.factor = capacity}});
      const at::Tensor x = randn({130, 10}, 3, type);
      EXPECT_TRUE(
          torch::equal(routed_mlp(x, routing, w, Activation::gelu), in_three_steps(x, routing, w)));
    }
  }
}

TEST(RoutedMlp, MoreTokensThanItsBufferHolds) {
  const torch::NoGradGuard no_grad;
  // 2 x 3000 rows of 1200 float32 are 29 MB.
  const ExpertWeights w = weights_of(3, 1200, 2, torch::kFloat);
  const Routing routing = route(randn({3000, 3}, 2, torch::kFloat), {.k = 2});
  const at::Tensor x = randn({3000, 1200}, 3, torch::kFloat);
  EXPECT_TRUE(
      torch::equal(routed_mlp(x, routing, w, Activation::gelu), in_three_steps(x, routing, w)));
}

TEST(RoutedMlp, GradientsEqualFiniteDifferences) {
  const ExpertWeights w = weights_of(3, 4, 5, torch::kDouble);
  std::vector<at::Tensor> inputs = {randn({6, 4}, 5), randn({6, 3}, 6), w.w1, w.b1, w.w2, w.b2};
  for (auto& input : inputs) input.set_requires_grad(true);
  expect_gradients(
      [](const auto& in) {
        const Routing routing = route(in[1], {.k = 2});
        return routed_mlp(in[0], routing, {in[2], in[3], in[4], in[5]}, Activation::gelu);
      },
      inputs);
}

TEST(RoutedMlp, Bfloat16IsCloseToFloat32) {
  const torch::NoGradGuard no_grad;
  for (const int64_t hidden : {64, 37}) {  // 37: factors do not come in pairs
    const ExpertWeights w = weights_of(4, 34, hidden, torch::kFloat);
    const auto half = [](const at::Tensor& t) { return t.to(torch::kBFloat16); };
    const Routing routing = route(randn({90, 4}, 2, torch::kFloat), {.k = 2});
    const at::Tensor x = randn({90, 34}, 3, torch::kFloat);
    const at::Tensor y = routed_mlp(
        half(x), routing, {half(w.w1), half(w.b1), half(w.w2), half(w.b2)}, Activation::gelu_tanh);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    expect_close(y, routed_mlp(x, routing, w, Activation::gelu_tanh), 2e-2);
  }
}

TEST(RoutedMlp, PackedWeightsGiveTheSameBits) {
  const torch::NoGradGuard no_grad;
  // Sizes that are no multiples of a panel's, and one of more than one stretch of hidden units.
  for (const auto& [width, hidden] : {std::pair{34, 50}, {320, 130}, {66, 1600}}) {
    for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
      const ExpertWeights w = weights_of(4, width, hidden, type), packed = pack_experts(w);
      ASSERT_TRUE(packed.is_packed || type != torch::kFloat);
      if (!packed.is_packed) continue;  // This processor has no products of two bytes.
      if (hidden > 128) {               // More than one panel.
        EXPECT_FALSE(torch::equal(packed.w1, w.w1));
      }
      const Routing routing = route(randn({90, 4}, 2, torch::kFloat), {.k = 2});
      const at::Tensor x = randn({90, width}, 3, type);
      EXPECT_TRUE(torch::equal(routed_mlp(x, routing, packed, Activation::gelu),
                               routed_mlp(x, routing, w, Activation::gelu)))
          << type << " of " << hidden;
    }
  }
}

TEST(RoutedMlp, PacksOnlyWhatGains) {
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(pack_experts(weights_of(2, 4, 6, torch::kDouble)).is_packed);
  EXPECT_FALSE(pack_experts(weights_of(2, 4, 5, torch::kBFloat16)).is_packed);  // 5 make no pairs.
}

TEST(RoutedMlp, RefusesPackedWeightsWhereTheyMeanNothing) {
  const Routing routing = route(torch::zeros({3, 2}), {.k = 1});
  ExpertWeights w = weights_of(2, 4, 6, torch::kDouble);
  w.is_packed = true;
  EXPECT_THROW(routed_mlp(torch::ones({3, 4}, torch::kDouble), routing, w, Activation::relu),
               Error);
  ExpertWeights half = weights_of(2, 4, 6, torch::kBFloat16);
  half.is_packed = true;
  half.b1.requires_grad_();
  EXPECT_THROW(routed_mlp(torch::ones({3, 4}, torch::kBFloat16), routing, half, Activation::relu),
               Error);
}

TEST(RoutedMlp, NoTokensAndTokensWithoutRows) {
  const torch::NoGradGuard no_grad;
  const ExpertWeights w = weights_of(2, 4, 6, torch::kFloat);
  const Routing none = route(torch::zeros({0, 2}), {.k = 1});
  EXPECT_EQ(routed_mlp(torch::zeros({0, 4}), none, w, Activation::relu).sizes(),
            (std::vector<int64_t>{0, 4}));
  Routing dropped = route(torch::zeros({3, 3}), {.k = 1, .kept = {1, 2}});
  EXPECT_EQ(routed_mlp(torch::ones({3, 4}), dropped, w, Activation::relu).abs().sum().item<float>(),
            0.0F);
}

TEST(RoutedMlp, RefusesWrongShapes) {
  const ExpertWeights w = weights_of(2, 4, 6, torch::kFloat);
  const Routing routing = route(torch::zeros({3, 2}), {.k = 1});
  EXPECT_THROW(routed_mlp(torch::zeros({3, 5}), routing, w, Activation::relu), Error);
  EXPECT_THROW(routed_mlp(torch::zeros({4, 4}), routing, w, Activation::relu), Error);
  EXPECT_THROW(routed_mlp(torch::zeros({3, 4}, torch::kDouble), routing, w, Activation::relu),
               Error);
}

}  // namespace
}  // namespace moesaic
