// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/optimizer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

namespace moesaic {
namespace {

std::vector<at::Tensor> three_four() {
  return {torch::tensor({3.0, 0.0}, torch::kDouble), torch::tensor({{4.0}}, torch::kDouble)};
}

TEST(Clip, NormIsOverAllTensorsTogether) {
  EXPECT_DOUBLE_EQ(gradient_norm(three_four()).item<double>(), 5.0);
  EXPECT_EQ(gradient_norm({}).item<double>(), 0.0);
}

TEST(Clip, ScalesDownToTheLimit) {
  auto gradients = three_four();
  clip_gradients(gradients, gradient_norm(gradients), 2.5);
  EXPECT_DOUBLE_EQ(gradients[0][0].item<double>(), 1.5);
  EXPECT_DOUBLE_EQ(gradients[1][0][0].item<double>(), 2.0);
  EXPECT_DOUBLE_EQ(gradient_norm(gradients).item<double>(), 2.5);
}

TEST(Clip, LeavesSmallerOnesToTheBit) {
  const auto before = three_four();
  for (const double limit : {5.1, 0.0}) {
    auto gradients = three_four();
    clip_gradients(gradients, gradient_norm(gradients), limit);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(torch::equal(gradients[i], before[i]));
  }
}

TEST(Clip, NormShowsWhatIsNotFinite) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const std::vector<at::Tensor> gradients = {torch::ones(5), torch::full({2}, bad)};
    EXPECT_FALSE(std::isfinite(gradient_norm(gradients).item<double>()));
  }
}

TEST(Clip, GivesTheBitsOfAFactorThatTheHostComputes) {
  for (const double size : {0.3, 3.0, 3e4}) {
    std::vector<at::Tensor> gradients = {torch::linspace(-size, size, 37), torch::full({2}, size)};
    std::vector<at::Tensor> wanted = {gradients[0].clone(), gradients[1].clone()};
    const double norm = gradient_norm(wanted).item<double>(), limit = 0.7;
    for (at::Tensor& gradient : wanted) gradient.mul_(norm < limit ? 1.0 : limit / norm);
    clip_gradients(gradients, gradient_norm(gradients), limit);
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(torch::equal(gradients[i], wanted[i])) << size;
  }
}

}  // namespace
}  // namespace moesaic
