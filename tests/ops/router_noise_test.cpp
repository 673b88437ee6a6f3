// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/router_noise.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::randn;

at::Generator generator(uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

TEST(RouterNoise, GaussianHasTheScaleOverTheNumberOfExpertsAsDeviation) {
  const at::Tensor logits = randn({20000, 8}, 1);
  const at::Tensor noise =
      add_router_noise(logits, {NoiseKind::gaussian, 2.0}, generator(1)) - logits;
  EXPECT_NEAR(noise.std().item<double>(), 0.25, 0.003);
  EXPECT_NEAR(noise.mean().item<double>(), 0.0, 0.003);
  EXPECT_EQ(gaussian_noise_std({NoiseKind::gaussian, 2.0}, 8), 0.25);
  // Two thirds lie within one deviation: a normal distribution, not just its moments.
  EXPECT_NEAR(noise.abs().le(0.25).to(torch::kDouble).mean().item<double>(), 0.6827, 0.01);
}

TEST(RouterNoise, IsThatOfFloat32WhereLogitsHaveFewerDigits) {
  for (const at::ScalarType type : {torch::kBFloat16, torch::kHalf}) {
    for (const NoiseKind kind : {NoiseKind::gaussian, NoiseKind::uniform}) {
      const at::Tensor logits = randn({50, 8}, 1).to(type).set_requires_grad(true);
      const at::Tensor noisy = add_router_noise(logits, {kind, 2.0}, generator(1));
      EXPECT_TRUE(
          at::equal(noisy, add_router_noise(logits.to(torch::kFloat), {kind, 2.0}, generator(1))));
      const at::Tensor upstream = randn({50, 8}, 2, torch::kFloat);
      noisy.backward(upstream);
      EXPECT_TRUE(at::equal(logits.grad(), upstream.to(type)));
      const at::Tensor quiet = add_router_noise(logits, {kind, 0.0}, generator(1));
      EXPECT_TRUE(at::equal(quiet, logits.to(torch::kFloat)));
    }
  }
}

TEST(RouterNoise, UniformLiesBetweenZeroAndItsScale) {
  const at::Tensor logits = randn({20000, 4}, 1);
  const at::Tensor noise =
      add_router_noise(logits, {NoiseKind::uniform, 3.0}, generator(1)) - logits;
  EXPECT_GE(noise.min().item<double>(), -1e-12);
  EXPECT_LE(noise.max().item<double>(), 3.0 + 1e-12);
  EXPECT_NEAR(noise.mean().item<double>(), 1.5, 0.02);
  EXPECT_NEAR(noise.std().item<double>(), 3.0 / std::sqrt(12.0), 0.02);
}

TEST(RouterNoise, ComesFromTheGeneratorAlone) {
  const at::Tensor logits = randn({30, 5}, 1, torch::kFloat);
  for (const auto kind : {NoiseKind::gaussian, NoiseKind::uniform}) {
    const at::Generator source = generator(7);
    const at::Tensor first = add_router_noise(logits, {kind}, source);
    torch::manual_seed(99);
    EXPECT_TRUE(torch::equal(first, add_router_noise(logits, {kind}, generator(7))));
    EXPECT_FALSE(torch::equal(first, add_router_noise(logits, {kind}, source)));
    EXPECT_FALSE(torch::equal(first, add_router_noise(logits, {kind}, generator(8))));
  }
}

TEST(RouterNoise, ItsGradientIsThatOfTheLogits) {
  at::Tensor logits = randn({6, 3}, 1).set_requires_grad(true);
  add_router_noise(logits, {}, generator(1)).sum().backward();
  EXPECT_TRUE(torch::equal(logits.grad(), torch::ones_like(logits)));
}

TEST(RouterNoise, ZeroScaleDrawsNothing) {
  const at::Tensor logits = randn({6, 3}, 1);
  at::Generator source = generator(3);
  const at::Tensor state = source.get_state();
  EXPECT_TRUE(torch::equal(add_router_noise(logits, {.scale = 0.0}, source), logits));
  EXPECT_TRUE(torch::equal(source.get_state(), state));
}

TEST(RouterNoise, RefusesWrongInput) {
  const at::Tensor logits = torch::zeros({4, 3});
  EXPECT_THROW(add_router_noise(logits, {}, at::Generator()), Error);
  EXPECT_THROW(add_router_noise(logits, {.scale = -1.0}, generator(1)), Error);
  EXPECT_THROW(add_router_noise(logits, {.scale = NAN}, generator(1)), Error);
  EXPECT_THROW(add_router_noise(logits[0], {}, generator(1)), Error);
  EXPECT_EQ(add_router_noise(torch::zeros({0, 3}), {}, generator(1)).size(0), 0);
  EXPECT_EQ(noise_kind_from_name("uniform"), NoiseKind::uniform);
  EXPECT_THROW(noise_kind_from_name("normal"), Error);
}

}  // namespace
}  // namespace moesaic
