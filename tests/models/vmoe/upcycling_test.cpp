// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "base/support.h"
#include "moesaic/models/registry.h"
#include "moesaic/models/vmoe/vmoe.h"
#include "support/small_vmoe.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

VMoEConfig dense_config() {
  VMoEConfig config = small_vmoe_config();
  config.patch_size = 4;
  config.num_classes = 3;
  config.encoder.num_layers = 3;
  config.encoder.mlp_dim = 40;
  config.encoder.moe = {};
  return config;
}

at::Tensor outputs(Model& model) {
  const torch::NoGradGuard no_grad;
  model.eval();
  return model.forward(small_images(5, 2)).pre_logits;
}

TEST(Upcycling, AMixtureBeginsAsTheDenseNetwork) {
  VMoE dense(dense_config(), 1);
  for (const int64_t k : {1, 2, 4}) {
    const auto mixture = dense.upcycled({4, {0, 2}, k}, 7);
    ASSERT_EQ(mixture->moe_blocks().size(), 2U);
    EXPECT_EQ(mixture->moe_blocks()[1].block, 2);
    expect_close(outputs(*mixture), outputs(dense), 1e-6);
  }
}

TEST(Upcycling, AGateOverAllExpertsWeighsThemByTheirProbability) {
  VMoE dense(dense_config(), 1);
  const auto mixture = dense.upcycled(
      {.num_experts = 4, .layers = {0}, .num_selected_experts = 1, .gate = Gate::softmax_all}, 7);
  const RouteOptions& rule = mixture->moe_blocks()[0].layer->options().rule;
  EXPECT_EQ(rule.gate, Gate::softmax_all);
  EXPECT_EQ(rule.k, 1);
  EXPECT_FALSE(torch::allclose(outputs(*mixture), outputs(dense)));
  const torch::NoGradGuard no_grad;
  const ModelOutput out = mixture->forward(small_images(5, 2));
  const nn::RoutingRecord& record = out.routings[0];
  expect_close(combine_weights(record.routing).sum(1), record.logits_TE.softmax(1).amax(1), 1e-6);
}

TEST(Upcycling, NoiseIsRelativeToEachTensorAndTellsExpertsApart) {
  VMoE dense(dense_config(), 1);
  const auto state = [&](double noise, uint64_t seed) {
    return state_of(*dense.upcycled({4, {1}, 2, noise}, seed));
  };
  const TensorMap exact = state(0.0, 7), noisy = state(0.3, 7), other = state(0.3, 8);
  for (const char* name : {"blocks.1.moe.experts.w1", "blocks.1.moe.experts.w2"}) {
    const at::Tensor noise = noisy.at(name) - exact.at(name);
    const double relative = (noise.std() / exact.at(name)[0].std()).item<double>();
    EXPECT_NEAR(relative, 0.3, 0.03) << name;
    EXPECT_FALSE(torch::equal(noise[0], noise[1])) << name;
    EXPECT_TRUE(torch::equal(noisy.at(name), state(0.3, 7).at(name))) << name;
    EXPECT_FALSE(torch::equal(noisy.at(name), other.at(name))) << name;
  }
  EXPECT_TRUE(
      torch::equal(noisy.at("blocks.1.moe.experts.b1"), exact.at("blocks.1.moe.experts.b1")));
  EXPECT_TRUE(torch::equal(noisy.at("blocks.0.mlp.fc1.weight"),
                           dense.named_parameters()["blocks.0.mlp.fc1.weight"]));
}

TEST(Upcycling, NeedsADenseNetworkWithTheseBlocks) {
  VMoE dense(dense_config(), 1);
  EXPECT_THAT(test::usage_of([&] {
                dense.upcycled({4, {3}}, 1);
              }),
              ::testing::HasSubstr("names block 3, but there are 3 blocks"));
  EXPECT_THAT(test::usage_of([&] {
                dense.upcycled({4, {1}}, 1)->upcycled({4, {2}}, 1);
              }),
              ::testing::HasSubstr("has experts already"));
}

TEST(Upcycling, NeedsNoValues) {
  const auto shape = build_meta_model(Value::from_json(to_json(dense_config()), "model"));
  const auto mixture = shape->upcycled({4, {1}, 2, 0.1}, 1);
  EXPECT_TRUE(mixture->device().is_meta());
  EXPECT_EQ(mixture->num_parameters(),
            VMoE(dense_config(), 1).upcycled({4, {1}}, 1)->num_parameters());
}

}  // namespace
}  // namespace moesaic
