// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/predict.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "base/support.h"
#include "data/png_bytes.h"
#include "support/matchers.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kNames = {"ant", "bee", "cat, tabby", "dog", "elk"};

/// Files of 8 x 8 pixels, for the networks of small_vmoe(), and their inputs.
class PredictImages : public ::testing::Test {
 protected:
  PredictImages() {
    for (int i = 0; i < 5; ++i) add("image" + std::to_string(i) + ".png", i);
  }

  /// Adds a gray image that `seed` makes.
  void add(const std::string& name, int seed) {
    test::Bytes pixels;
    at::Tensor input = at::empty({1, 1, 8, 8});
    for (int p = 0; p < 64; ++p) {
      const auto gray = static_cast<uint8_t>((p * (37 + 11 * seed) + 90 * seed) % 256);
      pixels.insert(pixels.end(), 3, gray);
      input.view({64})[p] = (gray / 255.0 - 0.5) / 0.2;
    }
    test::write_file(folder / name, test::png_bytes(8, 8, pixels));
    files.push_back(folder / name);
    inputs.push_back(input);
  }

  std::vector<ImagePrediction> predictions(Model& model, const PredictOptions& options = {}) {
    std::vector<ImagePrediction> list;
    predict_images(model, spec, files, options, [&](const ImagePrediction& prediction) {
      list.push_back(prediction);
      return true;
    });
    return list;
  }

  /// Compares with probabilities [images, classes].
  static void expect_probabilities(const std::vector<ImagePrediction>& found,
                                   const at::Tensor& wanted_BC) {
    ASSERT_EQ(static_cast<int64_t>(found.size()), wanted_BC.size(0));
    for (size_t i = 0; i < found.size(); ++i) {
      const auto [p, order] = wanted_BC[static_cast<int64_t>(i)].sort(0, true);
      for (size_t c = 0; c < found[i].top.size(); ++c) {
        const auto rank = static_cast<int64_t>(c);
        EXPECT_EQ(found[i].top[c].index, order[rank].item<int64_t>());
        EXPECT_NEAR(found[i].top[c].probability, p[rank].item<double>(), 1e-5);
      }
    }
  }

  const test::TempDir folder;
  InputSpec spec{.input_size = {1, 8, 8},
                 .rescale_factor = 1.0 / 255.0,
                 .mean = {0.5},
                 .std = {0.2},
                 .channel_order = "gray",
                 .classes = kNames};
  std::vector<fs::path> files;
  std::vector<at::Tensor> inputs;
};

TEST_F(PredictImages, GivesTheProbabilitiesOfTheTrainedLoss) {
  const auto model = small_vmoe();
  const at::Tensor logits = run(*model, at::cat(inputs)).logits;
  for (const int64_t batch_size : {1, 2, 100}) {
    const auto found = predictions(*model, {.batch_size = batch_size, .top_k = 3});
    expect_probabilities(found, logits.softmax(1));
    EXPECT_EQ(found[4].file, files[4]);
    EXPECT_EQ(found[4].top.size(), 3U);
  }
  const auto sigmoid = predictions(*model, {.top_k = 100, .loss = "sigmoid"});
  expect_probabilities(sigmoid, logits.sigmoid());
  EXPECT_EQ(sigmoid[0].top.size(), 5U);
}

TEST_F(PredictImages, OfAnEnsembleAreTheMeanOfItsMembers) {
  VMoEConfig config = small_vmoe_config();
  config.name = kE3;
  config.encoder.moe.ensemble_size = 2;
  const auto model = small_vmoe(config);
  const at::Tensor logits_BMC = run(*model, at::cat(inputs)).logits.view({5, 2, 5});
  expect_probabilities(predictions(*model), logits_BMC.softmax(2).mean(1));
  expect_probabilities(predictions(*model, {.loss = "ensemble_sigmoid"}),
                       logits_BMC.sigmoid().mean(1));
}

TEST_F(PredictImages, DamagedFilesAreNamedAndTheRestGoesOn) {
  const auto model = small_vmoe();
  const auto before = predictions(*model);
  test::write_file(folder / "broken.png", std::string("no image"));
  files.insert(files.begin() + 1, folder / "broken.png");
  files.push_back(folder / "absent.jpg");
  const auto found = predictions(*model, {.batch_size = 2});
  ASSERT_EQ(found.size(), 7U);
  EXPECT_THAT(found[1].problem, HasSubstr("broken.png: "));
  EXPECT_TRUE(found[1].top.empty());
  EXPECT_THAT(found[6].problem, HasSubstr("absent.jpg: "));
  EXPECT_EQ(found[2].problem, "");
  EXPECT_EQ(found[2].file, files[2]);
  EXPECT_EQ(to_json(found[2], kNames)["top"], to_json(before[1], kNames)["top"]);
  EXPECT_TRUE(to_json(found[1], kNames).contains("error"));
}

TEST_F(PredictImages, OfGroupsOfOneImageAreThoseOfEachAlone) {
  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.router.capacity.factor = 0.5;
  config.encoder.moe.num_group_images = 1;
  const auto model = small_vmoe(config);
  const auto together = predictions(*model);
  for (size_t i = 0; i < together.size(); ++i) {
    expect_probabilities({together[i]}, run(*model, inputs[i]).logits.softmax(1));
  }
}

TEST_F(PredictImages, DoNotDependOnTheirNeighboursWhereExpertsHaveACapacity) {
  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.router.capacity.factor = 0.5;
  const auto model = small_vmoe(config);
  const auto together = predictions(*model, {.returns_routing = true});
  for (size_t i = 0; i < together.size(); ++i) {
    const ModelOutput alone = run(*model, inputs[i]);
    expect_probabilities({together[i]}, alone.logits.softmax(1));
    const ImageRouting& layer = together[i].routing.at(1);
    EXPECT_EQ(layer.block, 3);
    const at::Tensor combine = combine_weights(alone.routings.at(1).routing);
    at::Tensor found = at::zeros_like(combine);
    for (size_t t = 0; t < layer.experts.size(); ++t) {
      for (size_t j = 0; j < layer.experts[t].size(); ++j) {
        found[static_cast<int64_t>(t)][layer.experts[t][j]] = layer.gates[t][j];
      }
    }
    EXPECT_TRUE(at::allclose(found, combine, 1e-5, 1e-6));
  }
  EXPECT_FALSE(at::allclose(run(*model, at::cat(inputs)).logits[4],
                            run(*model, inputs[4]).logits[0], 1e-3, 1e-3));
}

TEST_F(PredictImages, NameTheKeptExpertsOfAPrunedNetwork) {
  const auto model = small_vmoe();
  model->moe_blocks()[0].layer->keep_experts({1, 4});
  const ImageRouting layer = predictions(*model, {.returns_routing = true})[0].routing.at(0);
  ASSERT_EQ(layer.experts.size(), 17U);
  size_t listed = 0;
  for (const auto& token : layer.experts) {
    for (const int64_t expert : token) EXPECT_TRUE(expert == 1 || expert == 4) << expert;
    listed += token.size();
  }
  EXPECT_GT(listed, 0U);
}

TEST_F(PredictImages, OfColoursBecomeGrayAsPillowMakesThem) {
  const auto model = small_vmoe();
  const auto of = [&](std::array<uint8_t, 3> colour) {
    test::write_file(folder / "colour.png", test::plain_png_bytes(8, 8, colour));
    files = {folder / "colour.png"};
    return to_json(predictions(*model)[0], kNames)["top"];
  };
  EXPECT_EQ(of({255, 0, 0}), of({76, 76, 76}));
  EXPECT_EQ(of({0, 255, 0}), of({150, 150, 150}));
  EXPECT_EQ(of({10, 20, 30}), of({18, 18, 18}));
  EXPECT_NE(of({255, 0, 0}), of({77, 77, 77}));
}

TEST_F(PredictImages, AreRefusedWhereThereAreNoClassesOrNoImages) {
  VMoEConfig headless = small_vmoe_config();
  headless.num_classes = 0;
  const auto model = small_vmoe(), without = small_vmoe(headless);
  EXPECT_THAT(test::usage_of([&] { predictions(*without); }), HasSubstr("no head"));
  EXPECT_THAT(test::usage_of([&] { predictions(*model, {.loss = "squared"}); }),
              HasSubstr("not to classify"));
  spec.mean = spec.std = {};
  EXPECT_THAT(test::failure_of([&] { predictions(*model); }),
              HasSubstr("does not store mean and std"));
  spec.has_images = false;
  EXPECT_THAT(test::usage_of([&] { predictions(*model); }), HasSubstr("inputs are not images"));
}

TEST_F(PredictImages, AreRefusedWhereExpertsSelectMoreTokensThanOneHas) {
  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.router.kind = RoutingKind::expert_choice;
  config.encoder.moe.num_group_images = 4;
  const int64_t has = small_vmoe()->tokens_per_image();
  config.encoder.moe.router.l = has + 1;
  EXPECT_THAT(test::usage_of([&] { predictions(*small_vmoe(config)); }),
              HasSubstr(fmt::format("each expert of block 1 selects {} tokens of a batch, but "
                                    "images are classified one by one and have {} tokens",
                                    has + 1, has)));
}

TEST_F(PredictImages, EndWhereTheyAreNoLongerTaken) {
  const auto model = small_vmoe();
  int taken = 0;
  predict_images(*model, spec, files, {.batch_size = 2},
                 [&](const ImagePrediction&) { return ++taken < 3; });
  EXPECT_EQ(taken, 3);
}

TEST(ImagePrediction, IsTextOrCsvOrJson) {
  ImagePrediction one{.file = "a b.jpg", .top = {{2, 0.9}, {0, 0.012345678}}};
  one.routing = {{.block = 1, .experts = {{3, 0}, {}}, .gates = {{0.75, 0.25}, {}}}};
  EXPECT_EQ(to_text(one, kNames), "a b.jpg: cat, tabby 90.00 %, ant 1.23 %\n");
  EXPECT_EQ(to_csv(one, kNames), "a b.jpg,1,\"cat, tabby\",0.9\na b.jpg,2,ant,0.0123457\n");
  const ImagePrediction odd{.file = "a\x1b[31m,\xff.jpg", .top = {{0, 0.5}}};
  EXPECT_EQ(to_csv(odd, {"b\n\"c\""}), "\"a\\x1b[31m,\\xff.jpg\",1,\"b\\n\"\"c\"\"\",0.5\n");
  EXPECT_EQ(to_json(one, {}).dump(),
            R"({"file":"a b.jpg","top":[{"class":"2","index":2,"probability":0.9},)"
            R"({"class":"0","index":0,"probability":0.0123457}],)"
            R"("routing":[{"layer":1,"experts":[[3,0],[]],"gates":[[0.75,0.25],[]]}]})");
}

}  // namespace
}  // namespace moesaic
