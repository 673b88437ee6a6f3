// SPDX-License-Identifier: Apache-2.0
// Datasets without end, real-valued targets and known directions.
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "data/data_fixture.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/derived.h"
#include "moesaic/data/loader.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/data/source.h"
#include "moesaic/data/views.h"
#include "moesaic/papers/clusters.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::usage_of;

class EndlessClusters : public ::testing::Test {
 protected:
  EndlessClusters() { describe(R"("num_train": 25, "num_test": 6, "endless": true)"); }
  void describe(const std::string& settings) {
    write_file(path(), R"({"name": "stream", "format": "clusters",
                           "clusters": {"width": 12, )" +
                           settings + "}}");
  }
  std::string path() const { return (folder_.path() / "stream.json").string(); }
  std::shared_ptr<const Dataset> train() const { return open_dataset(path(), "train"); }

  test::TempDir folder_;
};

TEST_F(EndlessClusters, SampleIIsAlwaysTheSame) {
  const auto stream = train();
  EXPECT_TRUE(stream->is_endless());
  EXPECT_EQ(stream->size(), 25);
  EXPECT_FALSE(stream->has_images());
  EXPECT_FALSE(stream->inputs().values_NCHW.defined()) << "nothing is kept";
  const DatasetInputs many = stream->generate(20, 40);
  EXPECT_EQ(many.values_NCHW.sizes(), (std::vector<int64_t>{40, 1, 4, 12}));
  for (int64_t i = 0; i < 40; ++i) {
    const DatasetInputs one = stream->generate(20 + i, 1);
    EXPECT_TRUE(at::equal(one.values_NCHW[0], many.values_NCHW[i]));
    EXPECT_EQ(stream->label(20 + i), many.labels_N[i].item<int64_t>());
    EXPECT_EQ(stream->group(20 + i), many.groups_N[i].item<int64_t>());
  }
  EXPECT_TRUE(at::equal(train()->generate(20, 40).values_NCHW, many.values_NCHW));
  EXPECT_THAT(failure_of([&] { stream->generate(-1, 1); }), HasSubstr("does not exist"));
}

TEST_F(EndlessClusters, BeginAsTheFiniteDatasetDoesAndTestIsFinite) {
  const at::Tensor endless = train()->generate(0, 25).values_NCHW;
  const at::Tensor test = open_dataset(path(), "test")->inputs().values_NCHW;
  describe(R"("num_train": 25, "num_test": 6)");
  EXPECT_FALSE(train()->is_endless());
  EXPECT_TRUE(at::equal(endless, train()->inputs().values_NCHW));
  EXPECT_TRUE(at::equal(test, open_dataset(path(), "test")->inputs().values_NCHW));
  EXPECT_FALSE(open_dataset(path(), "test")->is_endless());
}

TEST(StreamDataset, OfAnotherShapeLaterIsAnError) {
  const auto make = [](int64_t first, int64_t count) {
    return DatasetInputs{.values_NCHW = at::zeros({count, 1, 1, first == 0 ? 3 : 2}),
                         .labels_N = at::zeros({count}, at::kLong)};
  };
  const DatasetInfo info{.name = "odd", .classes = {"a", "b"}};
  const auto stream = make_stream_dataset(info, 25, make);
  EXPECT_EQ(stream->generate(0, 4).values_NCHW.size(0), 4);
  EXPECT_THAT(failure_of([&] { stream->generate(5, 4); }),
              HasSubstr("dataset 'odd': 4 inputs and targets of shape [1, 1, 3] were not made; "
                        "found inputs [4, 1, 1, 2]"));
}

TEST_F(EndlessClusters, NeedNoMemoryForAll) {
  describe(R"("num_train": 100000000, "num_patches": 4096, "num_test": 1, "endless": true)");
  EXPECT_EQ(train()->generate(99999999999, 1).values_NCHW.size(0), 1);
}

/// 25 samples an epoch: a shuffled epoch goes on where the last one ended, and nothing else
/// matters.
TEST_F(EndlessClusters, TheLoaderTakesSamplesInOrderWithoutRepeating) {
  const auto stream = train();
  for (const int64_t batch_size : {10, 25, 7}) {
    for (const int64_t threads : {0, 1, 2, 4}) {
      const LoaderOptions options{
          .batch_size = batch_size, .seed = 3, .shuffle = true, .num_threads = threads};
      Loader loader(stream, options);
      const auto expect = [&](int64_t epoch, int64_t position) {
        const Batch batch = loader.next();
        EXPECT_EQ(batch.epoch, epoch);
        EXPECT_EQ(batch.position, position);
        const int64_t begin = position * batch_size, count = std::min(batch_size, 25 - begin);
        const DatasetInputs expected = stream->generate(epoch * 25 + begin, count);
        EXPECT_TRUE(at::equal(batch.inputs, expected.values_NCHW)) << epoch << ", " << position;
        EXPECT_TRUE(at::equal(batch.labels, expected.labels_N));
      };
      const int64_t batches = loader.batches_per_epoch();
      for (int64_t i = 0; i < 2 * batches + 1; ++i) expect(i / batches, i % batches);
      loader.seek(7, batches - 1);
      expect(7, batches - 1);
      expect(8, 0);
      loader.seek(0, 0);
      expect(0, 0);
    }
  }
}

TEST_F(EndlessClusters, AnUnshuffledLoaderSeesOneEpoch) {
  Loader loader(train(), {.batch_size = 25});
  EXPECT_TRUE(at::equal(loader.next().inputs, train()->generate(0, 25).values_NCHW));
  EXPECT_TRUE(loader.is_done());
  EXPECT_THAT(usage_of([&] { loader.seek(INT64_MAX / 20, 0); }), HasSubstr("does not exist"));
}

TEST_F(EndlessClusters, TheFirstOfThemAreFinite) {
  const auto first = make_first_n(train(), 8, "first");
  EXPECT_FALSE(first->is_endless());
  EXPECT_TRUE(at::equal(first->inputs().values_NCHW, train()->generate(0, 8).values_NCHW));
  EXPECT_THAT(usage_of([&] { hold_out(train(), 0.1, "train", false); }),
              HasSubstr("no validation split"));
  const auto renamed = make_renamed(train(), "other");
  EXPECT_TRUE(renamed->is_endless());
  EXPECT_EQ(renamed->info().name, "other");
  EXPECT_TRUE(
      at::equal(renamed->generate(90, 3).values_NCHW, train()->generate(90, 3).values_NCHW));
}

TEST(Directions, ArePassedOnByWhatIsMadeOfADataset) {
  const auto clusters = open_dataset("clusters-figure1", "train");
  ClusterMixtureConfig config;
  const ClusterSignals signals = cluster_signals(config);
  const auto expect = [&](const Dataset& dataset) {
    const Directions known = dataset.directions();
    ASSERT_EQ(known.size(), 2U);
    EXPECT_TRUE(at::equal(known.at("signal"), signals.v_Kd));
    EXPECT_TRUE(at::equal(known.at("centre"), signals.c_Kd));
  };
  expect(*clusters);
  expect(*preprocessed(clusters, PreprocessConfig{}));
  expect(*make_first_n(clusters, 10, "first"));
  expect(*make_renamed(clusters, "renamed"));
  expect(*hold_out(clusters, 0.1, "validation", /*is_sorted_by_class=*/false));
  const auto subset = make_class_subset(clusters, {"+1"}, "positive");
  expect(*subset);
  EXPECT_EQ(subset->inputs().values_NCHW.size(0), subset->size());
  EXPECT_EQ(subset->inputs().labels_N.max().item<int64_t>(), 0);
}

/// Example i has the targets i and -i.
DatasetInputs regression(int64_t first, int64_t count) {
  const at::Tensor i = at::arange(first, first + count, at::kFloat);
  return {.values_NCHW = i.view({count, 1, 1, 1}), .targets_NK = at::stack({i, -i}, 1)};
}

DatasetInfo regression_info() {
  return {.name = "line", .targets = {"up", "down"}};
}

TEST(RealTargets, GoWithTheirInputsThroughTheLoader) {
  const auto data = make_input_dataset(regression_info(), regression(0, 10));
  float targets[2];
  data->targets(4, targets);
  EXPECT_THAT(targets, ElementsAre(4.0F, -4.0F));
  EXPECT_TRUE(data->info().classes.empty());
  EXPECT_THAT(failure_of([&] { data->label(0); }), HasSubstr("no labels"));
  for (const bool shuffle : {false, true}) {
    for (const int64_t batch_size : {4, 10}) {
      Loader loader(data, {.batch_size = batch_size, .shuffle = shuffle, .num_threads = 2});
      std::vector<float> seen;
      for (int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
        const Batch batch = loader.next();
        EXPECT_FALSE(batch.labels.defined());
        EXPECT_TRUE(at::equal(batch.targets.select(1, 0), batch.inputs.flatten()));
        EXPECT_TRUE(at::equal(batch.targets.select(1, 1), -batch.inputs.flatten()));
        for (int64_t j = 0; j < batch.targets.size(0); ++j) {
          seen.push_back(batch.inputs[j].item<float>());
        }
        EXPECT_TRUE(batch.to(at::kMeta).targets.is_meta());
      }
      if (batch_size == 4) {
        EXPECT_EQ(shuffle, !std::is_sorted(seen.begin(), seen.end()));
      }
      std::sort(seen.begin(), seen.end());
      EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
    }
  }
  make_first_n(data, 5, "first")->targets(2, targets);
  EXPECT_THAT(targets, ElementsAre(2.0F, -2.0F));
}

TEST(RealTargets, CanBeAStream) {
  const auto stream = make_stream_dataset(regression_info(), 6, regression);
  Loader loader(stream, {.batch_size = 6, .shuffle = true});
  loader.next();
  EXPECT_TRUE(at::equal(loader.next().targets.select(1, 1), -at::arange(6, 12, at::kFloat)));
}

TEST(RealTargets, HaveToFit) {
  const auto refuse = [](DatasetInputs inputs, DatasetInfo info = regression_info()) {
    return failure_of([&] { make_input_dataset(info, inputs); });
  };
  DatasetInputs inputs = regression(0, 4);
  inputs.targets_NK = inputs.targets_NK.narrow(1, 0, 1);
  EXPECT_THAT(refuse(inputs), HasSubstr("targets must be [4, 2] float32, found [4, 1]"));
  inputs.targets_NK = regression(0, 3).targets_NK;
  EXPECT_THAT(refuse(inputs), HasSubstr("found [3, 2]"));
  inputs.targets_NK = regression(0, 4).targets_NK.to(at::kDouble);
  EXPECT_THAT(refuse(inputs), HasSubstr("Double"));
  inputs = regression(0, 4);
  inputs.targets_NK[2][1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(refuse(inputs), HasSubstr("a target of input 2 is not finite"));
  inputs = regression(0, 4);
  inputs.labels_N = at::zeros({4}, at::kLong);
  EXPECT_THAT(refuse(inputs), HasSubstr("either labels with classes, or real numbers"));
  DatasetInfo info = regression_info();
  info.classes = {"a"};
  EXPECT_THAT(refuse(regression(0, 4), info), HasSubstr("either labels with classes"));
  info = regression_info();
  info.targets.clear();
  EXPECT_THAT(refuse(regression(0, 4), info), HasSubstr("either labels with classes"));
}

/// Images whose targets are real numbers.
class BrightImages final : public Dataset {
 public:
  BrightImages() : Dataset(make_info()) {}
  int64_t size() const override { return 9; }
  int64_t label(int64_t) const override { fail("no labels"); }
  void targets(int64_t index, float* out) const override {
    *out = static_cast<float>(index) / 255.0F;
  }
  void oriented_image(int64_t index, std::optional<bool>, uint8_t* out) const override {
    std::fill_n(out, image_size(), static_cast<uint8_t>(index));
  }

 private:
  static DatasetInfo make_info() {
    return {.name = "bright",
            .channels = 1,
            .height = 2,
            .width = 2,
            .mean = {0.0},
            .std = {1.0},
            .targets = {"brightness"}};
  }
};

TEST(RealTargets, MayBelongToImages) {
  const auto images = std::make_shared<BrightImages>();
  LoaderOptions options{.batch_size = 9, .shuffle = true};
  const Batch batch = Loader(preprocessed(images, PreprocessConfig{.size = 4}), options).next();
  EXPECT_FALSE(batch.labels.defined());
  EXPECT_EQ(batch.targets.sizes(), (std::vector<int64_t>{9, 1}));
  EXPECT_TRUE(at::allclose(batch.inputs.mean({1, 2, 3}), batch.targets.flatten(), 0.0, 1e-6));
  options.augment.mixup = 0.2;
  EXPECT_THAT(usage_of([&] { Loader(images, options); }), HasSubstr("'mixup' needs classes"));
  EXPECT_THAT(usage_of([&] { make_rotated_pairs(images, {}, "turned"); }),
              HasSubstr("rotate needs classes"));
}

}  // namespace
}  // namespace moesaic
