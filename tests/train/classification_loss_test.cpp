// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/objective.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "support/tensors.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

/// [R, C] of doubles.
std::vector<std::vector<double>> rows_of(const at::Tensor& tensor) {
  std::vector<std::vector<double>> rows;
  for (int64_t r = 0; r < tensor.size(0); ++r) {
    rows.emplace_back();
    for (int64_t c = 0; c < tensor.size(1); ++c) rows.back().push_back(tensor[r][c].item<double>());
  }
  return rows;
}

/// By the formula, of one row.
double plain_loss(const std::string& name, const std::vector<double>& logits,
                  const std::vector<double>& targets) {
  double partition = 0, loss = 0;
  for (const double logit : logits) partition += std::exp(logit);
  for (size_t c = 0; c < logits.size(); ++c) {
    const double p = name.ends_with("softmax") ? std::exp(logits[c]) / partition
                                               : 1 / (1 + std::exp(-logits[c]));
    loss -= targets[c] * std::log(p);
    if (name.ends_with("sigmoid")) loss -= (1 - targets[c]) * std::log(1 - p);
  }
  return loss;
}

TEST(ClassificationLoss, SmoothsHardAndSoftLabels) {
  const at::Tensor logits = randn({3, 4}, 1, torch::kFloat), labels = torch::tensor({2, 0, 3});
  const at::Tensor soft = randn({3, 4}, 2, torch::kFloat).softmax(1);
  for (const char* name : {"softmax", "sigmoid", "ensemble_softmax", "ensemble_sigmoid"}) {
    for (const at::Tensor& given : {at::Tensor(), soft}) {
      const at::Tensor plain =
          given.defined() ? given : torch::one_hot(labels, 4).to(torch::kFloat);
      const at::Tensor wanted = plain * 0.7 + 0.3 / 4;
      const at::Tensor found = training_losses(name, logits, {labels, given, 0.3});
      ASSERT_EQ(found.sizes(), at::IntArrayRef({3}));
      for (int64_t b = 0; b < 3; ++b) {
        EXPECT_NEAR(found[b].item<double>(),
                    plain_loss(name, rows_of(logits)[b], rows_of(wanted)[b]), 1e-5)
            << name;
      }
      expect_close(evaluation_losses(name, logits, {labels, given, 0.3}), found, 1e-6);
    }
  }
}

TEST(ClassificationLoss, ComparesEachMemberWithItsImage) {
  const at::Tensor logits = randn({6, 4}, 3, torch::kFloat), labels = torch::tensor({1, 3});
  for (const std::string name : {"softmax", "sigmoid"}) {
    const at::Tensor found = training_losses("ensemble_" + name, logits, {labels, {}, 0.1});
    const at::Tensor rows = torch::tensor({1, 1, 1, 3, 3, 3});
    expect_close(found, training_losses(name, logits, {rows, {}, 0.1}), 1e-6);
    EXPECT_EQ(train_test::error_of([&] {
                training_losses(name, logits, {labels, {}});
              }),
              "usage: loss '" + name +
                  "' takes one row of logits an image, found 3; choose "
                  "ensemble_" +
                  name);
  }
}

TEST(ClassificationLoss, GradientsAreThoseOfFiniteDifferences) {
  const at::Tensor logits = randn({4, 3}, 4), labels = torch::tensor({0, 2});
  for (const char* name : {"ensemble_softmax", "ensemble_sigmoid"}) {
    const at::Tensor input = logits.to(torch::kFloat).requires_grad_();
    training_losses(name, input, {labels, {}, 0.2}).sum().backward();
    const auto value = [&](const at::Tensor& at) {
      double sum = 0;
      const at::Tensor targets = torch::one_hot(labels, 3).to(torch::kDouble) * 0.8 + 0.2 / 3;
      for (int64_t r = 0; r < 4; ++r)
        sum += plain_loss(name, rows_of(at)[r], rows_of(targets)[r / 2]);
      return sum;
    };
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t c = 0; c < 3; ++c) {
        at::Tensor up = logits.clone(), down = logits.clone();
        up[r][c] += 1e-5;
        down[r][c] -= 1e-5;
        EXPECT_NEAR(input.grad()[r][c].item<double>(), (value(up) - value(down)) / 2e-5, 1e-5);
      }
    }
  }
}

TEST(ClassificationLoss, UnknownNameIsRefused) {
  EXPECT_EQ(train_test::error_of([] {
              training_losses("softmx", torch::zeros({1, 2}), {torch::tensor({0}), {}});
            }),
            "usage: unknown loss 'softmx'; did you mean 'softmax'?");
}

TEST(ClassificationLoss, SoftmaxTwiceTakesProbabilitiesForLogits) {
  const at::Tensor logits = torch::tensor({{2.0F, -1.0F}, {60.0F, -60.0F}});
  const at::Tensor labels = torch::tensor({1, 0}, torch::kLong);
  const at::Tensor found = training_losses("softmax_twice", logits, {labels, {}, 0.0});
  const double p = 1.0 / (1.0 + std::exp(3.0));  // of the second class of the first row
  EXPECT_NEAR(found[0].item<double>(), std::log(1.0 + std::exp((1.0 - p) - p)), 1e-6);
  EXPECT_NEAR(found[1].item<double>(), 0.3132617, 1e-6);  // no loss of two classes is smaller
  EXPECT_EQ(classification_losses().at("softmax_twice").counterpart, "ensemble_softmax");
}

}  // namespace
}  // namespace moesaic
