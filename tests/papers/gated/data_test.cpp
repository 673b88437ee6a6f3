// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/gated.h"

#include <cmath>
#include <utility>
#include <vector>

#include "moesaic/data/dataset.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;

TEST(GatedMixture, ExamplesAreTheSameInAnyRangeAndOnAnyThreads) {
  const GatedMixtureConfig config{.width = 9, .num_experts = 3, .link = "tanh", .gates = kRandom};
  const GatedTruth truth = gated_truth(config);
  const DatasetInputs whole = gated_examples(config, truth, "train", 5, 20000);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{5, 1}, {262, 300}, {19000, 1005}}) {
    const DatasetInputs part = gated_examples(config, truth, "train", first, count);
    EXPECT_TRUE(torch::equal(part.values_NCHW, whole.values_NCHW.narrow(0, first - 5, count)));
    EXPECT_TRUE(torch::equal(part.targets_NK, whole.targets_NK.narrow(0, first - 5, count)));
  }
  at::set_num_threads(threads);
  const DatasetInputs other = gated_examples(config, truth, "test", 5, 10);
  EXPECT_FALSE(torch::equal(other.values_NCHW, whole.values_NCHW.narrow(0, 0, 10)));
}

TEST(GatedMixture, OutputsAreThoseOfTheExpertsThatTheGatesChoose) {
  const GatedMixtureConfig config{.width = 7,
                                  .num_experts = 3,
                                  .link = "softplus",
                                  .noise = 0.0,
                                  .regressors = kRandom,
                                  .gates = kRandom,
                                  .gate_norm = 2.0};
  const GatedTruth truth = gated_truth(config);
  const DatasetInputs found = gated_examples(config, truth, "train", 0, 50000);
  const Tensor x = found.values_NCHW.flatten(1);
  const Tensor off = (at::softplus(x.mm(truth.a_kd.t())) - found.targets_NK).abs();
  const Tensor chosen = off.argmin(1);
  EXPECT_LT(off.amin(1).max().item<double>(), 1e-5);
  // How often each expert is chosen where the gates give it a probability between two bounds.
  const Tensor gates = at::constant_pad_nd(x.mm(truth.w_kd.t()), {0, 1}).softmax(1);
  for (int64_t i = 0; i < 3; ++i) {
    for (const double least : {0.0, 0.2, 0.5, 0.8}) {
      const Tensor within = gates.select(1, i).ge(least) & gates.select(1, i).lt(least + 0.2);
      const double count = within.sum().item<double>();
      ASSERT_GT(count, 500.0);
      const double wanted = (gates.select(1, i) * within).sum().item<double>() / count;
      const double share = (chosen.eq(i) & within).sum().item<double>() / count;
      EXPECT_NEAR(share, wanted, 5.0 * std::sqrt(0.25 / count));
    }
  }
}

TEST(GatedMixture, NoiseHasItsDeviation) {
  const GatedMixtureConfig config{.width = 4, .num_experts = 1, .noise = 0.3};
  const GatedTruth truth = gated_truth(config);
  EXPECT_EQ(truth.w_kd.size(0), 0);
  const DatasetInputs found = gated_examples(config, truth, "train", 0, 40000);
  const Tensor x = found.values_NCHW.flatten(1);
  const Tensor noise = found.targets_NK.squeeze(1) - x.mv(truth.a_kd[0]);
  EXPECT_NEAR(noise.std().item<double>(), 0.3, 0.006);
  EXPECT_NEAR((noise * x.select(1, 0)).mean().item<double>(), 0.0, 0.008);
}

TEST(GatedMixture, DirectionsAreAsTheyAreNamed) {
  const auto products = [](const GatedMixtureConfig& config) {
    const GatedTruth truth = gated_truth(config);
    const Tensor all = at::cat({truth.a_kd, truth.w_kd}).to(torch::kDouble);
    return all.mm(all.t());
  };
  expect_close(
      products({.width = 9, .num_experts = 4, .regressors = kOrthogonal, .gates = kOrthogonal}),
      torch::eye(7, torch::kDouble), 1e-6);
  for (const char* regressors : {kAxes, kRandom}) {
    const Tensor among =
        products({.width = 9, .num_experts = 4, .regressors = regressors, .gates = kOrthogonal});
    expect_close(among.narrow(0, 4, 3).narrow(1, 0, 4), torch::zeros({3, 4}, torch::kDouble), 1e-6);
  }
  const GatedTruth axes = gated_truth({.width = 5, .num_experts = 2, .gate_norm = 3.0});
  EXPECT_TRUE(torch::equal(at::cat({axes.a_kd, axes.w_kd / 3}), torch::eye(5).slice(0, 0, 3)));
  const Tensor random =
      products({.width = 9, .num_experts = 4, .regressors = kRandom, .gates = kRandom});
  expect_close(random.diag(), torch::ones({7}, torch::kDouble), 1e-6);
  EXPECT_GT((random - random.diag().diag()).abs().max().item<double>(), 0.1);
}

TEST(GatedMixture, TooManyExpertsAreRefused) {
  const auto problem = [](const GatedMixtureConfig& config) { return config_problem(config).text; };
  EXPECT_THAT(problem({.width = 4, .num_experts = 3}),
              HasSubstr("do not fit into 4 dimensions; choose at most 2 experts"));
  EXPECT_EQ(problem({.width = 5, .num_experts = 3}), "");
  // Random gates need not be orthogonal to anything, nor random regressors.
  EXPECT_EQ(problem({.width = 4, .num_experts = 3, .gates = kRandom}), "");
  const GatedMixtureConfig many{
      .width = 4, .num_experts = 6, .regressors = kRandom, .gates = kRandom};
  EXPECT_EQ(problem(many), "");
  EXPECT_EQ(gated_truth(many).w_kd.sizes(), (std::vector<int64_t>{5, 4}));
  EXPECT_THAT(problem({.width = 4, .num_experts = 6, .gates = kRandom}),
              HasSubstr("6 orthogonal regressors do not fit"));
  EXPECT_THAT(problem({.num_experts = 3, .gate_biases = {1.0}}),
              HasSubstr("gate_biases has 1 numbers, but 3 experts have 2 gates"));
}

TEST(GatedMixture, BiasesAloneMakeTheExpertsAsProbableAsTheirSoftmax) {
  const GatedMixtureConfig config{
      .num_experts = 3, .noise = 0.0, .gate_norm = 0.0, .gate_biases = {1.0, -0.5}};
  const GatedTruth truth = gated_truth(config);
  const DatasetInputs found = gated_examples(config, truth, "train", 0, 40000);
  const Tensor chosen =
      (found.values_NCHW.flatten(1).mm(truth.a_kd.t()) - found.targets_NK).abs().argmin(1);
  const double sum = std::exp(1.0) + std::exp(-0.5) + 1.0;
  for (const auto& [expert, logit] : {std::pair{0, 1.0}, {1, -0.5}, {2, 0.0}}) {
    const double share = chosen.eq(expert).to(torch::kDouble).mean().item<double>();
    EXPECT_NEAR(share, std::exp(logit) / sum, 0.0125);  // Five standard errors.
  }
}

TEST(GatedMixture, IsADatasetWhoseTrainingSplitIsEndless) {
  const auto train = open_dataset("gated-orthogonal", "train");
  const auto test = open_dataset("gated-orthogonal", "test");
  EXPECT_TRUE(train->is_endless());
  EXPECT_FALSE(test->is_endless());
  EXPECT_EQ(test->size(), 4096);
  EXPECT_EQ(train->image_size(), 10);
  EXPECT_EQ(train->directions().at("regressor").size(0), 2);
  EXPECT_EQ(train->directions().at("gate").size(0), 1);
  const DatasetInputs far = train->generate(int64_t{1} << 45, 3);
  EXPECT_TRUE(far.targets_NK.isfinite().all().item<bool>());
}

}  // namespace
}  // namespace moesaic
