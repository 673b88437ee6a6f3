// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/router.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

at::Generator generator(uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

at::Tensor noise_of(int64_t tokens, int64_t experts, const NoiseOptions& options,
                    const at::Generator& source, at::ScalarType type = torch::kDouble) {
  return router_noise(tokens, experts, at::TensorOptions(type), options, source);
}

TEST(RouterNoise, GaussianHasTheScaleOverTheNumberOfExpertsAsDeviation) {
  const at::Tensor noise = noise_of(20000, 8, {NoiseKind::gaussian, 2.0}, generator(1));
  EXPECT_NEAR(noise.std().item<double>(), 0.25, 0.003);
  EXPECT_NEAR(noise.mean().item<double>(), 0.0, 0.003);
  EXPECT_EQ(gaussian_noise_std({NoiseKind::gaussian, 2.0}, 8), 0.25);
  // Two thirds lie within one deviation: a normal distribution, not just its moments.
  EXPECT_NEAR(noise.abs().le(0.25).to(torch::kDouble).mean().item<double>(), 0.6827, 0.01);
}

TEST(RouterNoise, UniformLiesBetweenZeroAndItsScale) {
  const at::Tensor noise = noise_of(20000, 4, {NoiseKind::uniform, 3.0}, generator(1));
  EXPECT_GE(noise.min().item<double>(), 0.0);
  EXPECT_LE(noise.max().item<double>(), 3.0);
  EXPECT_NEAR(noise.mean().item<double>(), 1.5, 0.02);
  EXPECT_NEAR(noise.std().item<double>(), 3.0 / std::sqrt(12.0), 0.02);
}

TEST(RouterNoise, ComesFromTheGeneratorAlone) {
  for (const auto kind : {NoiseKind::gaussian, NoiseKind::uniform}) {
    const auto noise = [&](const at::Generator& source) {
      return noise_of(30, 5, {kind}, source, torch::kFloat);
    };
    const at::Generator source = generator(7);
    const at::Tensor first = noise(source);
    torch::manual_seed(99);
    EXPECT_TRUE(torch::equal(first, noise(generator(7))));
    EXPECT_FALSE(torch::equal(first, noise(source)));
    EXPECT_FALSE(torch::equal(first, noise(generator(8))));
  }
}

TEST(RouterNoise, HasNoGradient) {
  const auto options = at::TensorOptions(torch::kFloat).requires_grad(true);
  EXPECT_FALSE(router_noise(6, 3, options, {}, generator(1)).requires_grad());
}

TEST(RouterNoise, ZeroScaleDrawsNothing) {
  at::Generator source = generator(3);
  const at::Tensor state = source.get_state();
  EXPECT_TRUE(
      torch::equal(noise_of(6, 3, {.scale = 0.0}, source), torch::zeros({6, 3}, torch::kDouble)));
  EXPECT_TRUE(torch::equal(source.get_state(), state));
}

TEST(RouterNoise, RefusesWrongInput) {
  EXPECT_THROW(noise_of(4, 3, {}, at::Generator()), Error);
  EXPECT_THROW(noise_of(4, 3, {.scale = -1.0}, generator(1)), Error);
  EXPECT_THROW(noise_of(4, 3, {.scale = NAN}, generator(1)), Error);
  EXPECT_EQ(noise_of(0, 3, {}, generator(1)).size(0), 0);
  EXPECT_EQ(noise_kind_from_name("uniform"), NoiseKind::uniform);
  EXPECT_THROW(noise_kind_from_name("normal"), Error);
}

}  // namespace
}  // namespace moesaic
