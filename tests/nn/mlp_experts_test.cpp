// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/mlp_experts.h"

#include "moesaic/base/error.h"
#include "moesaic/nn/moe_layer.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/ops/device.h"
#include "moesaic/ops/route.h"
#include "moesaic/ops/routed_mlp.h"
#include "support/tensors.h"

namespace moesaic::nn {
namespace {

ExpertWeights weights(at::ScalarType type) {
  return {randn({3, 8, 12}, 1, type), randn({3, 12}, 2, type), randn({3, 12, 8}, 3, type),
          randn({3, 8}, 4, type)};
}

class PackedExpertsTest : public ::testing::Test {
 protected:
  bool is_packed(const ExpertWeights& of) { return packed_.get(of, type_).is_packed; }

  /// Two bytes where the processor has products of them.
  const at::ScalarType type_ =
      pack_experts(weights(torch::kBFloat16)).is_packed ? torch::kBFloat16 : torch::kFloat;
  PackedExperts packed_;
};

TEST_F(PackedExpertsTest, FromTheSecondCallOnUntilTheWeightsChange) {
  const ExpertWeights w = weights(torch::kFloat);
  EXPECT_FALSE(is_packed(w));
  EXPECT_TRUE(is_packed(w));
  const at::Tensor kept = packed_.get(w, type_).w1;
  EXPECT_TRUE(packed_.get(w, type_).w1.is_same(kept));
  for (at::Tensor tensor : {w.w1, w.b1, w.w2, w.b2}) {
    tensor.add_(1);
    EXPECT_FALSE(is_packed(w));
    EXPECT_TRUE(is_packed(w));
    const ExpertWeights found = packed_.get(w, type_);
    const ExpertWeights wanted =
        pack_experts({w.w1.to(type_), w.b1.to(type_), w.w2.to(type_), w.b2.to(type_)});
    EXPECT_TRUE(torch::equal(found.w1, wanted.w1) && torch::equal(found.b1, wanted.b1) &&
                torch::equal(found.w2, wanted.w2) && torch::equal(found.b2, wanted.b2));
  }
}

TEST_F(PackedExpertsTest, OtherWeightsAndOtherTypesAreNotTakenForThem) {
  const ExpertWeights w = weights(torch::kFloat), other = weights(torch::kFloat);
  EXPECT_FALSE(is_packed(w));
  EXPECT_FALSE(is_packed(other));
  EXPECT_TRUE(is_packed(other));
  EXPECT_EQ(packed_.get(other, torch::kHalf).w1.scalar_type(), torch::kHalf);
  packed_.clear();
  EXPECT_FALSE(is_packed(other));
}

TEST_F(PackedExpertsTest, MemoryThatReplacesAnotherIsNotTakenForIt) {
  ExpertWeights w = weights(torch::kFloat);
  is_packed(w);
  EXPECT_TRUE(is_packed(w));
  w.w1.set_data(w.w1 * 2);  // keeps the version
  EXPECT_FALSE(is_packed(w));
}

TEST_F(PackedExpertsTest, TensorsWithoutVersionsAreNeverPacked) {
  const c10::InferenceMode inference;
  const ExpertWeights w = weights(torch::kFloat);
  EXPECT_FALSE(is_packed(w));
  EXPECT_FALSE(is_packed(w));
}

TEST_F(PackedExpertsTest, ALayerComputesTheSameBitsAndForgetsInTraining) {
  MlpExperts experts(MlpExpertsOptions{.num_experts = 3, .width = 8, .hidden = 12},
                     at::Generator());
  const Routing routing = route(randn({20, 3}, 5, torch::kFloat), {.k = 2});
  const at::Tensor x = randn({20, 8}, 6, torch::kFloat);
  const auto compute = [&] {
    const torch::NoGradGuard no_grad;
    const Autocast autocast(type_ == torch::kFloat ? "float32" : "bfloat16", at::kCPU);
    return mixture(*experts, x, routing, {}).y_To;
  };
  const at::Tensor first = compute();
  EXPECT_TRUE(torch::equal(compute(), first));
  EXPECT_TRUE(torch::equal(compute(), first));
  mixture(*experts, x, routing, {}).y_To.sum().backward();
  experts->w2.detach().zero_();
  experts->b2.detach().zero_();
  EXPECT_EQ(compute().abs().max().item<float>(), 0.0F);
  EXPECT_EQ(compute().abs().max().item<float>(), 0.0F);
}

TEST(MlpExpertsTest, ComputeInInt8WithoutGradientsAndFollowTheirWeights) {
  MlpExperts experts(MlpExpertsOptions{.num_experts = 3, .width = 8, .hidden = 12},
                     at::Generator());
  if (!has_int8_matmul()) {
    EXPECT_THROW(experts->use_int8(), Error);
    return;
  }
  const Routing routing = route(randn({20, 3}, 5, torch::kFloat), {.k = 2});
  const at::Tensor x = randn({20, 8}, 6, torch::kFloat);
  experts->use_int8();
  EXPECT_THROW(mixture(*experts, x, routing, {}), Error);
  const torch::NoGradGuard no_grad;
  for (int i = 0; i < 2; ++i) {
    const ExpertWeights own =
        quantise_experts({experts->w1, experts->b1, experts->w2, experts->b2});
    EXPECT_TRUE(torch::equal(mixture(*experts, x, routing, {}).y_To,
                             routed_mlp(x, routing, own, Activation::gelu_tanh)));
    experts->w1.mul_(2);
  }
  EXPECT_THROW(expert_rows(*experts, x, routing, {}), Error);
}

}  // namespace
}  // namespace moesaic::nn
