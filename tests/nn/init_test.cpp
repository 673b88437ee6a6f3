// SPDX-License-Identifier: Apache-2.0
// Statistics and bounds of initial values, as Flax draws those of the V-MoE reference.
#include "moesaic/nn/init.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "moesaic/nn/encoder_block.h"
#include "moesaic/nn/mlp_experts.h"
#include "moesaic/nn/moe_layer.h"

namespace moesaic::init_test {
namespace {

double largest(const at::Tensor& x) {
  return x.abs().max().item<double>();
}

/// Uniform on +-bound: nothing is beyond, something is near, and the deviation is bound / sqrt(3).
void expect_uniform(const at::Tensor& x, double bound, const std::string& name) {
  EXPECT_LE(largest(x), bound * (1 + 1e-6)) << name;
  EXPECT_GT(largest(x), 0.98 * bound) << name;
  EXPECT_NEAR(x.std().item<double>(), bound / std::sqrt(3), 0.03 * bound) << name;
}

TEST(Init, LecunIsNormalUpToTwoDeviations) {
  const at::Tensor x = at::empty({400, 500});
  nn::lecun_normal(x, 100, nn::make_generator(1));
  EXPECT_NEAR(x.std().item<double>(), 0.1, 5e-4);
  EXPECT_NEAR(x.mean().item<double>(), 0.0, 1e-3);
  const double uncut = 0.1 / 0.87962566;
  EXPECT_LE(largest(x), 2 * uncut * (1 + 1e-6));
  EXPECT_GT(largest(x), 1.999 * uncut);
  // Of a normal distribution erf(1 / sqrt(2)) is within one deviation, of what is within two more.
  const double within = std::erf(std::sqrt(0.5)) / std::erf(std::sqrt(2.0));
  EXPECT_NEAR((x.abs() < uncut).to(at::kDouble).mean().item<double>(), within, 0.005);
}

TEST(Init, QueryKeyAndValueAreDrawnEachForItself) {
  const nn::Attention attention(nn::AttentionOptions{.width = 64, .num_heads = 4},
                                nn::make_generator(1));
  const auto parts = attention->qkv->weight.detach().chunk(3);
  for (const at::Tensor& part : parts) expect_uniform(part, std::sqrt(6.0 / 128), "qkv");
  expect_uniform(attention->out->weight.detach(), std::sqrt(6.0 / 128), "out");
  EXPECT_FALSE(torch::equal(parts[0], parts[1]));
  EXPECT_EQ(largest(attention->qkv->bias), 0.0);
}

TEST(Init, BiasesOfMlpsAreNormalAndTiny) {
  const nn::Mlp mlp(nn::MlpOptions{.width = 64, .hidden = 1024}, nn::make_generator(1));
  EXPECT_NEAR(mlp->fc1->bias.std().item<double>(), 1e-6, 1e-7);
  EXPECT_GT(largest(mlp->fc2->bias), 0.0);
  EXPECT_LT(largest(mlp->fc2->bias), 1e-5);
  const nn::MlpExperts experts(nn::MlpExpertsOptions{.num_experts = 4, .width = 64, .hidden = 256},
                               nn::make_generator(1));
  EXPECT_NEAR(experts->b1.std().item<double>(), 1e-6, 1e-7);
  EXPECT_NEAR(experts->b2.std().item<double>(), 1e-6, 2e-7);
}

TEST(Init, ExpertsStartFromOneDrawOrEachFromItsOwn) {
  for (const bool shared : {false, true}) {
    const nn::MoELayer layer(
        nn::MoELayerOptions{.width = 48, .hidden = 96, .num_experts = 4, .shared_init = shared});
    const auto experts = std::dynamic_pointer_cast<nn::MlpExpertsImpl>(layer->experts);
    for (const at::Tensor& stack : {experts->w1, experts->b1, experts->w2, experts->b2}) {
      for (int64_t e = 1; e < 4; ++e) EXPECT_EQ(torch::equal(stack[e], stack[0]), shared) << e;
      EXPECT_TRUE(stack.requires_grad());
    }
    expect_uniform(experts->w1[3].detach(), std::sqrt(6.0 / (48 + 96)), "w1");
    EXPECT_FALSE(torch::equal(layer->router->weight[0], layer->router->weight[1]));
  }
}

}  // namespace
}  // namespace moesaic::init_test
