// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/pmoe.h"

#include <torch/torch.h>

#include "support/matchers.h"

namespace moesaic {
namespace {

using at::Tensor;

constexpr PatchPatternsConfig kCase{
    .width = 20, .num_patches = 10, .num_sets = 9, .threshold = 4, .delta_d = 0.3, .delta_r = 0.5};

TEST(PatchPatterns, AreUnitVectorsWithTheProductsOfTheTheory) {
  const PatternSets sets = pattern_sets(kCase);
  EXPECT_NEAR(sets.deciding_2d[0].dot(sets.deciding_2d[1]).item<double>(), 0.3, 1e-6);
  const DatasetInputs made = patch_patterns(kCase, sets, "train", 0, 500);
  const Tensor x = made.values_NCHW.squeeze(1);
  EXPECT_LT((x.norm(2, {2}) - 1).abs().max().item<double>(), 1e-5);
  const Tensor product = x.matmul(sets.deciding_2d.t());  // [N, n, 2]
  const Tensor is_own = torch::zeros({500, 10}).scatter_(1, made.groups_N.unsqueeze(1), 1.0).gt(0);
  const Tensor own = product.index({is_own});
  for (int64_t i = 0; i < 500; ++i) {
    EXPECT_EQ(made.labels_N[i].item<int64_t>(), i % 2);
    EXPECT_NEAR(own[i][i % 2].item<double>(), 1.0, 1e-5);
  }
  const Tensor others = product.index({is_own.logical_not()});
  EXPECT_LE(others.abs().max().item<double>(), 0.5 + 1e-5);
  // l* - 1 patches are closer to one of both by (1 - delta_d) / 2, all to the same one.
  const Tensor closer = (product.select(2, 0) - product.select(2, 1)).masked_fill(is_own, 0.0);
  const double least = (1.0 - 0.3) / 2.0;
  const Tensor to_first = closer.gt(least).sum(1), to_second = closer.lt(-least).sum(1);
  EXPECT_TRUE(torch::equal(to_first + to_second, torch::full({500}, 3)));
  EXPECT_TRUE(torch::equal(to_first * to_second, torch::zeros({500}, torch::kLong)));
  EXPECT_NEAR(to_first.to(torch::kDouble).mean().item<double>(), 1.5, 0.25);
}

TEST(PatchPatterns, AreAFunctionOfSplitAndIndex) {
  const auto values = [](const std::string& split, int64_t first, int64_t count) {
    return patch_patterns(kCase, pattern_sets(kCase), split, first, count).values_NCHW;
  };
  const Tensor all = values("train", 100, 50);
  EXPECT_TRUE(torch::equal(values("train", 120, 3), all.slice(0, 20, 23)));
  EXPECT_FALSE(torch::equal(values("test", 100, 50), all));
}

TEST(PatchPatterns, RefuseWhatNoVectorsHave) {
  const auto problem = [](double delta_d, double delta_r, int64_t threshold) {
    PatchPatternsConfig config = kCase;
    config.delta_d = delta_d;
    config.delta_r = delta_r;
    config.threshold = threshold;
    return config_problem(config).text;
  };
  EXPECT_EQ(problem(0.3, 0.5, 4), "");
  EXPECT_THAT(problem(0.3, 0.5, 11), HasSubstr("an example has 10 patches"));
  EXPECT_THAT(problem(0.0, 0.2, 4), HasSubstr("choose a delta_r above 0.25"));
  EXPECT_THAT(problem(0.3, 0.7, 4), HasSubstr("no unit vector"));
  EXPECT_EQ(problem(0.0, 0.2, 1), "") << "without close patterns there is nothing to reach";
}

}  // namespace
}  // namespace moesaic
