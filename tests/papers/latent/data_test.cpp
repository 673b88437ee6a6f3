// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/latent.h"

#include <cmath>

#include "base/support.h"
#include "moesaic/base/random.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/source.h"
#include "moesaic/ops/normals.h"
#include "papers/latent/plain_experts.h"
#include "support/matchers.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;

using testing::dot_product;
using testing::hermite;

TEST(LatentClusters, ExamplesAreTheSameInAnyRangeAndOnAnyThreads) {
  const LatentClustersConfig config{.width = 21, .num_clusters = 3, .noise = 0.1};
  const LatentTruth truth = latent_truth(config);
  const DatasetInputs whole = latent_examples(config, truth, "train", 5, 3000);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{5, 1}, {262, 300}, {2900, 105}}) {
    const DatasetInputs part = latent_examples(config, truth, "train", first, count);
    EXPECT_TRUE(torch::equal(part.values_NCHW, whole.values_NCHW.narrow(0, first - 5, count)));
    EXPECT_TRUE(torch::equal(part.targets_NK, whole.targets_NK.narrow(0, first - 5, count)));
    EXPECT_TRUE(torch::equal(part.groups_N, whole.groups_N.narrow(0, first - 5, count)));
  }
  at::set_num_threads(threads);
  const DatasetInputs other = latent_examples(config, truth, "test", 5, 10);
  EXPECT_FALSE(torch::equal(other.values_NCHW, whole.values_NCHW.narrow(0, 0, 10)));
}

TEST(LatentClusters, TargetsAreThoseOfAssumption32) {
  for (const char* directions : {"orthogonal", "random"}) {
    const LatentClustersConfig config{
        .width = 19, .num_clusters = 4, .rho = 2.0, .directions = directions};
    const LatentTruth truth = latent_truth(config);
    const DatasetInputs found = latent_examples(config, truth, "train", 100, 200);
    for (int64_t i = 0; i < 200; ++i) {
      const auto c = found.groups_N[i].item<int64_t>();
      const Tensor x = found.values_NCHW[i].flatten();
      const double z = dot_product(x, truth.local_Cd[c]);
      const double g = hermite(3, dot_product(x, truth.global_1d[0]));
      const double wanted = hermite(3, z) + (c % 2 == 0 ? hermite(5, z) + g : hermite(4, z) - g);
      EXPECT_NEAR(found.targets_NK[i][0].item<double>(), wanted, 1e-4 * (1.0 + std::abs(wanted)));
    }
  }
}

TEST(LatentClusters, InputsAreNormalAroundTheMeans) {
  const LatentClustersConfig config{.width = 19, .num_clusters = 4, .rho = 3.0};
  const LatentTruth truth = latent_truth(config);
  const DatasetInputs found = latent_examples(config, truth, "test", 0, 40000);
  const Tensor counts = found.groups_N.bincount({}, 4).to(torch::kDouble);
  EXPECT_LT((counts / 10000 - 1).abs().max().item<double>(), 0.05);
  const Tensor rest = (found.values_NCHW.flatten(1) - truth.mean_Cd.index_select(0, found.groups_N))
                          .to(at::kDouble);
  EXPECT_LT(rest.mean(0).abs().max().item<double>(), 0.02);
  expect_close(rest.t().mm(rest) / 40000, torch::eye(19, torch::kDouble), 0.04);
}

TEST(LatentClusters, InputsAreTheNumbersOfTheStreamAndTheMean) {
  const LatentClustersConfig config{.width = 21, .seed = 6};
  LatentTruth truth = latent_truth(config);
  truth.mean_Cd = torch::zeros_like(truth.mean_Cd);
  const DatasetInputs found = latent_examples(config, truth, "test", 9, 70);
  const Tensor wanted = torch::empty({21, 70});
  SampleRng(6, stream_id("latent.test")).normals(9, 70, 21, wanted.mutable_data_ptr<float>(), 70);
  EXPECT_TRUE(torch::equal(found.values_NCHW.flatten(1), wanted.t()));
}

TEST(LatentClusters, OnlyTrainingTargetsHaveNoise) {
  LatentClustersConfig config{.width = 9};
  const LatentTruth truth = latent_truth(config);
  const auto targets = [&](double noise, const std::string& split) {
    config.noise = noise;
    return latent_examples(config, truth, split, 0, 20000).targets_NK.squeeze(1);
  };
  EXPECT_TRUE(torch::equal(targets(0.5, "test"), targets(0.0, "test")));
  const auto inputs = [&](double deviation) {
    config.noise = deviation;
    return latent_examples(config, truth, "train", 0, 100).values_NCHW.flatten(1);
  };
  EXPECT_TRUE(torch::equal(inputs(0.5), inputs(0.0)));
  const Tensor noise = targets(0.5, "train") - targets(0.0, "train");
  EXPECT_NEAR(noise.std().item<double>(), 0.5, 0.01);
  EXPECT_NEAR(noise.mean().item<double>(), 0.0, 0.02);
}

TEST(LatentClusters, DirectionsAreAsTheyAreNamed) {
  const auto products = [](const LatentClustersConfig& config) {
    const LatentTruth truth = latent_truth(config);
    const Tensor all = at::cat({truth.local_Cd, truth.global_1d, truth.mean_Cd / config.rho});
    return all.to(torch::kDouble).mm(all.to(torch::kDouble).t());
  };
  expect_close(products({.width = 9, .num_clusters = 4, .rho = 5.0}), torch::eye(9, torch::kDouble),
               1e-6);
  const Tensor random = products({.width = 9, .num_clusters = 4, .directions = "random"});
  expect_close(random.diag(), torch::ones({9}, torch::kDouble), 1e-6);
  EXPECT_GT((random - random.diag().diag()).abs().max().item<double>(), 0.1);
}

TEST(LatentClusters, SignsSumToZero) {
  const auto signs = [](int64_t clusters) {
    return latent_truth({.width = 30, .num_clusters = clusters}).sign;
  };
  EXPECT_EQ(signs(4), (std::vector<double>{1, -1, 1, -1}));
  EXPECT_EQ(signs(3), (std::vector<double>{1, -0.5, -0.5}));
  EXPECT_EQ(signs(5), (std::vector<double>{1, -1, 1, -0.5, -0.5}));
}

TEST(LatentClusters, TakeTheSignsOfExample41) {
  const LatentClustersConfig config{
      .width = 19, .num_clusters = 3, .local = {{0, 0, 1}}, .global = {0, 2}, .signs = {1, -1, 0}};
  const LatentTruth truth = latent_truth(config);
  const DatasetInputs found = latent_examples(config, truth, "train", 7, 90);
  for (int64_t i = 0; i < 90; ++i) {
    const auto c = found.groups_N[i].item<int64_t>();
    const Tensor x = found.values_NCHW[i].flatten();
    const double z = dot_product(x, truth.local_Cd[c]);
    const double g = 2 * dot_product(x, truth.global_1d[0]);
    const double wanted = (z * z - 1) / std::sqrt(2.0) + (c == 0 ? g : c == 1 ? -g : 0.0);
    EXPECT_NEAR(found.targets_NK[i][0].item<double>(), wanted, 1e-4 * (1.0 + std::abs(wanted)));
  }
}

TEST(LatentClusters, RefusesWhatCannotBeLearned) {
  const auto problem = [](const LatentClustersConfig& config) {
    return config_problem(config).text;
  };
  EXPECT_EQ(problem({.width = 5}), "");
  EXPECT_THAT(problem({.width = 4}), HasSubstr("2 clusters have 5 directions"));
  EXPECT_EQ(problem({.local = {{0, 0, 1}}, .global = {0, 1}}), "");
  EXPECT_THAT(problem({.local = {{0, 0, 0, 1}, {1, 0, 0, 1}}}),
              HasSubstr("local.1 has a constant term"));
  EXPECT_THAT(problem({.signs = {1, -1, 0}}), HasSubstr("signs has 3 numbers for 2 clusters"));
  EXPECT_THAT(problem({.global = {0, 0, 0, 0}}), HasSubstr("needs a coefficient other than 0"));
  EXPECT_THAT(problem({.local = {{0, 0, 0, 1}, {0, 0, 0, 1}, {0, 0, 0, 1}}}),
              HasSubstr("local has 3 tasks for 2 clusters"));
}

TEST(LatentClusters, SaysWhatTheTheoremsDoNotCover) {
  EXPECT_EQ(assumption_violations({.local = {{0, 0, 0, 0, 1}}, .global = {0, 0, 0, 0, -1}}), "");
  EXPECT_EQ(assumption_violations({}),
            "an odd information exponent, 3, tasks whose mean square is not 1");
  EXPECT_EQ(assumption_violations({.local = {{0, 0, 1}}, .global = {0, 0, 1}}),
            "an information exponent below 3, 2");
  EXPECT_EQ(assumption_violations(
                {.local = {{0, 0, 0, 0, 1}}, .global = {0, 0, 0, 0, 1}, .signs = {1, 1}}),
            "signs whose sum is not 0");
  EXPECT_THAT(assumption_violations({.local = {{0, 0, 0, 0, 0, 0, 1}}, .global = {0, 0, 0, 0, 1}}),
              HasSubstr("different information exponents"));
  EXPECT_THAT(assumption_violations({.local = {{0, 0, 0, 0, 0.8, 0.6}}, .global = {0, 0, 0, 0, 1}}),
              HasSubstr("leading coefficients of different magnitude"));
  EXPECT_EQ(assumption_violations(
                {.local = {{0, 0, 0, 0, 1}}, .global = {0, 0, 0, 0, -1}, .directions = "random"}),
            "means that are not orthogonal to the tasks' directions");
}

TEST(LatentClusters, IsADatasetWhoseTrainingSplitIsEndless) {
  const auto train = open_dataset("latent-small", "train");
  const auto test = open_dataset("latent-small", "test");
  EXPECT_TRUE(train->is_endless());
  EXPECT_FALSE(test->is_endless());
  EXPECT_EQ(train->size(), 65536);  // Of an epoch, which probes of the training split see.
  EXPECT_EQ(test->size(), 2048);
  EXPECT_EQ(train->image_size(), 24);
  EXPECT_EQ(train->directions().at("local").size(0), 2);
  EXPECT_EQ(train->directions().at("global").size(0), 1);
  EXPECT_NEAR(train->directions().at("mean").norm(2, {1})[1].item<double>(), 3.0, 1e-5);
  EXPECT_EQ(test->info().groups, (std::vector<std::string>{"cluster 1", "cluster 2"}));
  const DatasetInputs far = train->generate(int64_t{1} << 45, 3);
  EXPECT_TRUE(far.targets_NK.isfinite().all().item<bool>());
}

TEST(LatentClusters, WarnWhereTheyAreOpenedAndNotWhereTheyAreListed) {
  EXPECT_EQ(test::said_by([] { EXPECT_EQ(DatasetSource("latent-small").num_classes(), 0); }), "");
  EXPECT_THAT(test::said_by([] { open_dataset("latent-small", "train"); }),
              HasSubstr("dataset 'latent-small': the theorems do not cover it"));
  EXPECT_EQ(test::said_by([] { open_dataset("latent-small", "test"); }), "");
}

}  // namespace
}  // namespace moesaic
