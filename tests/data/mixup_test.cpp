// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/transforms.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace moesaic {
namespace {

TEST(Mixup, WeightsAreTheLargerHalfOfABeta) {
  for (const double a : {0.05, 0.2, 0.5, 1.0, 4.0}) {
    constexpr int kDraws = 20000;
    double squares = 0;
    for (uint64_t i = 0; i < kDraws; ++i) {
      CounterRng rng(7, 8, i);
      const double weight = mixup_weight(a, rng);
      ASSERT_GE(weight, 0.5);
      ASSERT_LE(weight, 1.0);
      squares += (weight - 0.5) * (weight - 0.5);
    }
    // The variance of Beta(a, a), whichever half is taken.
    EXPECT_NEAR(squares / kDraws, 1 / (4 * (2 * a + 1)), 0.003) << a;
  }
}

TEST(Mixup, AUniformPairIsUniform) {
  int below = 0;
  for (uint64_t i = 0; i < 10000; ++i) {
    CounterRng rng(1, 2, i);
    if (mixup_weight(1.0, rng) < 0.6) ++below;
  }
  EXPECT_NEAR(below, 2000, 150);
}

TEST(Mixup, EachImageMeetsTheNextOne) {
  const at::Tensor before = at::arange(2 * 3 * 5, at::kFloat).reshape({5, 2, 3}).sqrt();
  at::Tensor images = before.clone();
  mix_with_next(images, 0.7);
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t j = 0; j < 6; ++j) {
      const double own = before.view({5, 6})[i][j].item<double>();
      const double next = before.view({5, 6})[(i + 1) % 5][j].item<double>();
      EXPECT_NEAR(images.view({5, 6})[i][j].item<double>(), 0.7 * own + 0.3 * next, 1e-6);
    }
  }
  const at::Tensor labels = at::tensor({2, 0, 0, 1, 3}, at::kLong);
  const at::Tensor soft = mixed_labels(labels, 4, 0.7);
  ASSERT_EQ(soft.sizes(), at::IntArrayRef({5, 4}));
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t c = 0; c < 4; ++c) {
      const double want = (labels[i].item<int64_t>() == c ? 0.7 : 0.0) +
                          (labels[(i + 1) % 5].item<int64_t>() == c ? 0.3 : 0.0);
      EXPECT_NEAR(soft[i][c].item<double>(), want, 1e-6);
    }
  }
}

TEST(Mixup, OneImageStaysItself) {
  at::Tensor images = at::full({1, 3}, 2.5f);
  mix_with_next(images, 0.6);
  EXPECT_TRUE(at::allclose(images, at::full({1, 3}, 2.5f)));
  EXPECT_NEAR(mixed_labels(at::zeros({1}, at::kLong), 2, 0.6)[0][0].item<double>(), 1.0, 1e-6);
}

}  // namespace
}  // namespace moesaic
