// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/losses.h"

#include <cmath>

#include "moesaic/base/error.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

at::Tensor some_labels(int64_t rows, int64_t classes) {
  return torch::arange(rows) * 7 % classes;
}

std::vector<double> plain_softmax(const std::vector<double>& values) {
  double sum = 0;
  std::vector<double> p;
  for (const double v : values) sum += std::exp(v);
  for (const double v : values) p.push_back(std::exp(v) / sum);
  return p;
}

/// Plain loops over doubles.
at::Tensor plain_losses(const at::Tensor& logits_in, const at::Tensor& labels, bool twice) {
  const at::Tensor logits = logits_in.to(torch::kDouble);
  at::Tensor losses = torch::empty({logits.size(0)}, torch::kDouble);
  for (int64_t n = 0; n < logits.size(0); ++n) {
    std::vector<double> row(logits[n].const_data_ptr<double>(),
                            logits[n].const_data_ptr<double>() + logits.size(1));
    std::vector<double> p = plain_softmax(row);
    if (twice) p = plain_softmax(p);
    losses[n] = -std::log(p[labels[n].item<int64_t>()]);
  }
  return losses;
}

TEST(CrossEntropy, EqualsPlainLoopsForAnyShape) {
  for (const auto& [rows, classes] :
       {std::pair{1, 2}, {64, 2}, {2113, 3}, {65, 64}, {7, 65}, {5, 1}, {0, 4}}) {
    for (const bool twice : {false, true}) {
      const at::Tensor logits = randn({rows, classes}, 1) * 3, labels = some_labels(rows, classes);
      expect_close(cross_entropy(logits, labels, twice), plain_losses(logits, labels, twice),
                   1e-13);
      expect_close(cross_entropy(logits.to(torch::kFloat), labels, twice),
                   plain_losses(logits.to(torch::kFloat), labels, twice), 2e-6);
    }
  }
}

TEST(CrossEntropy, GradientsEqualFiniteDifferences) {
  const at::Tensor labels = some_labels(70, 3);
  for (const bool twice : {false, true}) {
    expect_gradients([&](const auto& in) { return cross_entropy(in[0], labels, twice); },
                     {randn({70, 3}, 2).set_requires_grad(true)});
  }
}

TEST(CrossEntropy, ExtremeLogitsStayFiniteAndNansAreSeen) {
  const at::Tensor labels = torch::tensor({0, 0, 1, 0, 1});
  const at::Tensor logits = torch::tensor(
      {{1e4F, -1e4F}, {-1e4F, 1e4F}, {-INFINITY, 2.0F}, {NAN, 0.0F}, {INFINITY, 0.0F}});
  const at::Tensor once = cross_entropy(logits, labels);
  EXPECT_EQ(once[0].item<float>(), 0.0F);
  EXPECT_EQ(once[1].item<float>(), 2e4F);
  EXPECT_EQ(once[2].item<float>(), 0.0F);
  const at::Tensor twice = cross_entropy(logits, labels, true);
  expect_close(twice.slice(0, 0, 3), torch::tensor({0.31326169, 1.31326169, 0.31326169}), 1e-6);
  for (const int64_t row : {3, 4}) {
    EXPECT_TRUE(std::isnan(once[row].item<float>()));
    EXPECT_TRUE(std::isnan(twice[row].item<float>()));
  }
}

TEST(CrossEntropy, RefusesWhatDoesNotFit) {
  const at::Tensor logits = randn({3, 2}, 1), labels = torch::tensor({0, 1, 0});
  EXPECT_ANY_THROW(cross_entropy(logits, torch::tensor({0, 1, 2})));
  EXPECT_ANY_THROW(cross_entropy(logits, torch::tensor({0, -1, 1})));
  EXPECT_THROW(cross_entropy(logits, labels.slice(0, 1)), Error);
  EXPECT_THROW(cross_entropy(logits, labels.to(torch::kInt)), Error);
  EXPECT_THROW(cross_entropy(logits.to(torch::kInt), labels), Error);
  EXPECT_THROW(cross_entropy(logits[0], labels), Error);
}

}  // namespace
}  // namespace moesaic
