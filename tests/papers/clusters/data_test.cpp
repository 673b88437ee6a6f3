// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/clusters.h"

#include <torch/torch.h>

#include <cmath>

#include "base/support.h"
#include "moesaic/base/error.h"
#include "moesaic/config/document.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/loader.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

ClusterMixtureConfig small(int64_t examples) {
  return {.num_clusters = 3,
          .num_patches = 5,
          .width = 20,
          .num_train = examples,
          .num_test = examples};
}

DatasetInputs all_examples(const ClusterMixtureConfig& config, const std::string& split) {
  return cluster_examples(config, cluster_signals(config), split, 0,
                          split == "train" ? config.num_train : config.num_test);
}

TEST(ClusterMixture, SignalsAndCentresAreOrthonormal) {
  const ClusterSignals signals = cluster_signals(small(1));
  const at::Tensor all = torch::cat({signals.v_Kd, signals.c_Kd});
  EXPECT_EQ(all.sizes(), (std::vector<int64_t>{6, 20}));
  EXPECT_TRUE(torch::allclose(all.mm(all.t()), torch::eye(6), 0.0, 1e-6));
}

/// What is left of the patches once each is explained by definition 3.1.
TEST(ClusterMixture, EveryExampleIsAsDefinition31Says) {
  const ClusterMixtureConfig config = small(500);
  const ClusterSignals signals = cluster_signals(config);
  const DatasetInputs examples = all_examples(config, "train");
  const at::Tensor x = examples.values_NCHW.squeeze(1) / config.scale;
  const at::Tensor along_v = at::einsum("npd,kd->npk", {x, signals.v_Kd});
  const at::Tensor along_c = at::einsum("npd,kd->npk", {x, signals.c_Kd});
  const at::Tensor length = x.norm(2, 2);
  for (int64_t i = 0; i < 500; ++i) {
    const auto k = examples.groups_N[i].item<int64_t>();
    const double y = examples.labels_N[i].item<int64_t>() == 1 ? 1.0 : -1.0;
    int signal = 0, centre = 0, other = 0, noise = 0;
    for (int64_t p = 0; p < config.num_patches; ++p) {
      const double size = length[i][p].item<double>();
      const auto v = along_v[i][p].abs().argmax().item<int64_t>();
      const double strength = along_v[i][p][v].item<double>();
      if (std::abs(std::abs(strength) - size) < 1e-5) {
        if (v == k && !signal && strength * y > 0) {
          ++signal;
          EXPECT_TRUE(size >= 0.5 && size <= 2.0);
        } else {
          EXPECT_NE(v, k);
          ++other;
          EXPECT_TRUE(size >= 0.5 && size <= 3.0);
        }
      } else if (std::abs(along_c[i][p][k].item<double>() - size) < 1e-5) {
        ++centre;
        EXPECT_TRUE(size >= 1.0 && size <= 2.0);
      } else {
        ++noise;
      }
    }
    EXPECT_EQ((std::vector<int>{signal, centre, other, noise}), (std::vector<int>{1, 1, 1, 2}))
        << i;
  }
}

TEST(ClusterMixture, DrawsEverythingEvenly) {
  ClusterMixtureConfig config = small(6000);
  config.noise = 2.0;
  const DatasetInputs examples = all_examples(config, "train");
  for (int64_t k = 0; k < 3; ++k) {
    EXPECT_NEAR(examples.groups_N.eq(k).sum().item<double>(), 2000, 5 * std::sqrt(6000 * 2 / 9.0));
  }
  EXPECT_NEAR(examples.labels_N.sum().item<double>(), 3000, 5 * std::sqrt(1500.0));
  // Where noise is: two patches of five, anywhere; its variance is 100 sigma^2 / d.
  const ClusterSignals signals = cluster_signals(config);
  const at::Tensor all = torch::cat({signals.v_Kd, signals.c_Kd});
  const at::Tensor x = examples.values_NCHW.squeeze(1);
  const at::Tensor inside = at::einsum("npd,kd->npk", {x, all}).norm(2, 2);
  const at::Tensor is_noise = (x.norm(2, 2) - inside) > 1e-2;
  EXPECT_EQ(is_noise.sum().item<int64_t>(), 12000);
  for (int64_t p = 0; p < 5; ++p) {
    EXPECT_NEAR(is_noise.select(1, p).sum().item<double>(), 2400, 5 * std::sqrt(6000 * 0.24));
  }
  const at::Tensor noise = x.index({is_noise});
  EXPECT_NEAR(noise.var().item<double>(), 100 * 4.0 / 20, 0.5);
  EXPECT_NEAR(noise.mean().item<double>(), 0.0, 0.05);
}

TEST(ClusterMixture, SplitsAndSeedsDifferAndExamplesStay) {
  const ClusterMixtureConfig config = small(50);
  const at::Tensor train = all_examples(config, "train").values_NCHW;
  EXPECT_FALSE(torch::equal(train, all_examples(config, "test").values_NCHW));
  ClusterMixtureConfig other = config;
  other.seed = 2;
  EXPECT_FALSE(torch::equal(train, all_examples(other, "train").values_NCHW));
  EXPECT_FALSE(torch::equal(cluster_signals(config).v_Kd, cluster_signals(other).v_Kd));
  EXPECT_TRUE(torch::equal(train, all_examples(small(80), "train").values_NCHW.slice(0, 0, 50)));
}

TEST(ClusterMixture, TheSameExamplesCanStandInOrderAndWithMoreNoise) {
  ClusterMixtureConfig config = small(50);
  const DatasetInputs shuffled = all_examples(config, "test");
  config.shuffle = false;
  config.noise *= 3.0;
  const DatasetInputs drawn = all_examples(config, "test");
  EXPECT_TRUE(torch::equal(shuffled.labels_N, drawn.labels_N));
  EXPECT_TRUE(torch::equal(shuffled.groups_N, drawn.groups_N));
  const ClusterSignals signals = cluster_signals(config);
  const at::Tensor sign = 2.0 * drawn.labels_N - 1.0, x = drawn.values_NCHW.squeeze(1);
  const at::Tensor v = signals.v_Kd.index_select(0, drawn.groups_N);
  const at::Tensor c = signals.c_Kd.index_select(0, drawn.groups_N);
  EXPECT_TRUE(((x.select(1, 0) * v).sum(1) * sign > 0).all().item<bool>());
  EXPECT_TRUE(((x.select(1, 1) * c).sum(1) > 0).all().item<bool>());
  // Each patch of the one is somewhere in the other, those of noise three times as large.
  for (int64_t p = 0; p < config.num_patches; ++p) {
    const at::Tensor patch = x.select(1, p) / (p < 3 ? 1.0 : 3.0);
    const at::Tensor apart = (shuffled.values_NCHW.squeeze(1) - patch.unsqueeze(1)).norm(2, 2);
    EXPECT_LT(std::get<0>(apart.min(1)).max().item<double>(), 1e-5) << p;
  }
}

TEST(ClusterMixture, RefusesWhatDoesNotFit) {
  ClusterMixtureConfig config = small(10);
  EXPECT_TRUE(config_problem(config).empty());
  config.num_clusters = 11;
  EXPECT_FALSE(config_problem(config).empty());
  config = small(10);
  config.alpha = {2.0, 1.0};
  EXPECT_FALSE(config_problem(config).empty());
}

TEST(ClusterMixture, RefusesMoreThanTheMachineHolds) {
  const test::TempDir folder;
  test::put(folder / "vast.json", R"({"name": "vast", "format": "clusters",
      "clusters": {"num_train": 100000000, "num_test": 10, "num_patches": 4096, "width": 65536}})");
  const std::string file = (folder / "vast.json").string();
  EXPECT_NO_THROW(load_dataset_spec(file));
  EXPECT_THAT(test::usage_of([&] { open_dataset(file, "train"); }),
              HasSubstr("the train split of 100000000 examples of 268435456 numbers needs "));
}

TEST(ClusterMixture, RefusesStrengthsWhoseCubesLeaveFloat32) {
  for (const char* key : {"alpha", "beta", "gamma"}) {
    const Document far =
        Document::from_text(std::string(R"({")") + key + R"(": [1, 1e300]})", "far");
    EXPECT_THROW(parse<ClusterMixtureConfig>(far.root()), Error) << key;
  }
}

TEST(ClusterMixture, IsADatasetOfInputsWithGroups) {
  const auto data = open_dataset("clusters-setting2", "test");
  EXPECT_EQ(data->size(), 16000);
  EXPECT_FALSE(data->has_images());
  EXPECT_EQ(data->info().classes.size(), 2U);
  EXPECT_EQ(data->info().groups.size(), 4U);
  EXPECT_EQ(data->info().height, 4);
  EXPECT_EQ(data->info().width, 50);
  EXPECT_EQ(data->inputs().groups_N.max().item<int64_t>(), 3);
  EXPECT_EQ(data->label(7), data->inputs().labels_N[7].item<int64_t>());
}

TEST(InputDataset, BatchesAreThoseOfTheOrderAndAWholeBatchIsTheDatasetItself) {
  const at::Tensor values = torch::arange(24, torch::kFloat).view({6, 1, 2, 2});
  const at::Tensor labels = torch::tensor({0, 1, 0, 1, 1, 0}, torch::kLong);
  const DatasetInfo info{.name = "six", .classes = {"a", "b"}};
  const auto data = make_input_dataset(info, {values, labels, {}});
  LoaderOptions options{.batch_size = 6, .shuffle = true};
  EXPECT_TRUE(Loader(data, options).next().inputs.is_same(data->inputs().values_NCHW));
  options.batch_size = 4;
  options.num_threads = 2;
  Loader loader(data, options);
  std::vector<at::Tensor> seen;
  for (int i = 0; i < 2; ++i) {
    const Batch batch = loader.next();
    for (int64_t j = 0; j < batch.labels.size(0); ++j) {
      const auto index = static_cast<int64_t>(batch.inputs[j][0][0][0].item<double>() / 4);
      EXPECT_TRUE(torch::equal(batch.inputs[j], values[index]));
      EXPECT_EQ(batch.labels[j].item<int64_t>(), labels[index].item<int64_t>());
      seen.push_back(torch::tensor(index));
    }
  }
  EXPECT_TRUE(torch::equal(std::get<0>(torch::stack(seen).sort()), torch::arange(6)));
  options.augment.flip = true;
  EXPECT_THROW(Loader(data, options), Error);
}

TEST(InputDataset, RefusesLabelsAndGroupsWithoutNames) {
  const DatasetInfo info{.name = "two", .classes = {"a", "b"}};
  const at::Tensor values = torch::zeros({2, 1, 1, 1});
  const at::Tensor good = torch::tensor({0, 1}, torch::kLong);
  EXPECT_NO_THROW(make_input_dataset(info, {values, good, {}}));
  EXPECT_THROW(make_input_dataset(info, {values, good + 1, {}}), Error);
  EXPECT_THROW(make_input_dataset(info, {values, good.slice(0, 1), {}}), Error);
  EXPECT_THROW(make_input_dataset(info, {values, good, good}), Error);
  EXPECT_THROW(make_input_dataset(info, {values.to(torch::kDouble), good, {}}), Error);
}

}  // namespace
}  // namespace moesaic
