// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/evaluate.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/data/views.h"
#include "moesaic/models/registry.h"
#include "moesaic/nn/init.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

/// The classes by the normal equations, whose matrix is inverted for one l2.
at::Tensor plain_ridge(const at::Tensor& x, const at::Tensor& labels, int64_t classes, double l2,
                       const at::Tensor& test) {
  const at::Tensor mean = x.mean(0, true), std = (x - mean).square().mean(0, true).sqrt() + 1e-5;
  const auto inputs = [&](const at::Tensor& of) {
    const at::Tensor bias = torch::full({of.size(0), 1}, 100.0, torch::kDouble);
    return torch::cat({(of - mean) / std, bias}, 1);
  };
  at::Tensor y = torch::full({x.size(0), classes}, -1.0, torch::kDouble);
  for (int64_t i = 0; i < x.size(0); ++i) y[i][labels[i].item<int64_t>()] = 1.0;
  const at::Tensor a = inputs(x);
  const at::Tensor gram = a.t().mm(a) + l2 * torch::eye(a.size(1), torch::kDouble);
  return inputs(test).mm(gram.inverse().mm(a.t().mm(y))).argmax(1);
}

TEST(RidgeClasses, AreThoseOfTheNormalEquations) {
  const at::Generator random = nn::make_generator(3);
  for (const int64_t rows : {6, 40}) {  // Fewer and more than features.
    const at::Tensor x = torch::randn({rows, 9}, random, torch::kDouble);
    const at::Tensor labels = torch::arange(rows, torch::kLong).remainder(3);
    const at::Tensor test = torch::randn({5000, 9}, random, torch::kDouble);
    const std::vector<double> l2 = {0.1, 8.0, 300.0};
    const at::Tensor found = ridge_predictions(x, labels, 3, l2, test);
    ASSERT_EQ(found.sizes(), at::IntArrayRef({3, 5000}));
    for (size_t i = 0; i < l2.size(); ++i) {
      const at::Tensor expected = plain_ridge(x, labels, 3, l2[i], test);
      // Scores are float32: near a boundary one may fall on the other side.
      EXPECT_LE(found[static_cast<int64_t>(i)].ne(expected).sum().item<int64_t>(), 3) << l2[i];
    }
    EXPECT_FALSE(found[0].equal(found[2]));
  }
}

TEST(RidgeClasses, AreOfAFeatureThatNeverChangesTooAndOfOneRowEach) {
  const at::Tensor x = torch::tensor({{1.0, 5.0}, {3.0, 5.0}}, torch::kDouble);
  const at::Tensor found =
      ridge_predictions(x, torch::tensor({1, 0}, torch::kLong), 2, {1.0}, x.to(torch::kFloat));
  EXPECT_TRUE(found.equal(torch::tensor({{1, 0}}, torch::kLong)));
}

class FewShot : public ::testing::Test {
 protected:
  FewShot() : model(build_model(Document::from_text(kModel, "model").root(), 9)) {}

  /// pre_logits of all images, by one forward pass.
  at::Tensor features(const std::shared_ptr<const Dataset>& data) const {
    const torch::NoGradGuard no_grad;
    model->eval();
    const at::Tensor images = Loader(data, {.batch_size = data->size()}).next().inputs;
    return model->forward(images).pre_logits.to(torch::kDouble);
  }
  static at::Tensor labels(const Dataset& data) {
    std::vector<int64_t> list;
    for (int64_t i = 0; i < data.size(); ++i) list.push_back(data.label(i));
    return torch::tensor(list, torch::kLong);
  }

  std::shared_ptr<Model> model;
  // Two classes, which the network with its three outputs does not know.
  std::shared_ptr<const Dataset> training = quarters("two", "train", 2, 30),
                                 measured = quarters("two", "test", 2, 40);
};

TEST_F(FewShot, IsTheMeanOverSeedsOfTheBestStrength) {
  FewShotOptions few{.shots = {5, 2}, .l2 = {0.5, 64.0, 4096.0}, .num_seeds = 2};
  const Metrics found = few_shot(*model, training, measured, few, {.batch_size = 7});
  for (const int64_t shots : few.shots) {
    double best = -1.0;
    for (const double l2 : few.l2) {
      double sum = 0.0;
      for (const uint64_t seed : {0, 1}) {
        const auto sample = make_first_n(make_sample(training, 10, seed), 2 * shots, "first");
        EXPECT_EQ(labels(*sample).sum().item<int64_t>(), shots);  // As many of each.
        const at::Tensor classes =
            plain_ridge(features(sample), labels(*sample), 2, l2, features(measured));
        sum += 100.0 * classes.eq(labels(*measured)).to(torch::kDouble).mean().item<double>();
      }
      best = std::max(best, sum / 2.0);
    }
    const std::string name = "few_shot." + std::to_string(shots) + "-shot";
    EXPECT_NEAR(found.at(name), best, 1.3) << name;  // Half an image of 40, by rounding.
    EXPECT_TRUE(found.contains(name + "_l2") && found.contains(name + "_std"));
  }
  few.num_seeds = 1;
  EXPECT_FALSE(few_shot(*model, training, measured, few, {}).contains("few_shot.2-shot_std"));
}

TEST_F(FewShot, CountsAllPassesAsOneAndEndsWhereItIsTold) {
  const FewShotOptions few{.shots = {2}, .l2 = {1.0}, .num_seeds = 3};
  int64_t last = 0;
  const auto until = [&](int64_t end) {
    EvaluateOptions options{.batch_size = 4};
    options.on_progress = [&last, end](int64_t done, int64_t total) {
      EXPECT_EQ(total, 40 + 3 * 4);
      EXPECT_GE(done, last);
      last = done;
      return done < end;
    };
    last = 0;
    return few_shot(*model, training, measured, few, options);
  };
  EXPECT_FALSE(until(100).empty());
  EXPECT_EQ(last, 52);
  EXPECT_TRUE(until(20).empty());
  EXPECT_TRUE(until(45).empty());
}

TEST_F(FewShot, NeedsAsManyImagesOfEachClass) {
  const auto error_with = [&](int64_t shots, const std::shared_ptr<const Dataset>& data) {
    return error_of([&] { few_shot(*model, data, measured, {.shots = {1, shots}}, {}); });
  };
  EXPECT_EQ(error_with(15, quarters("two", "train", 2, 29)),
            "usage: --shots: the class 'class 1' of 'two' has 14 images to train on, not 15; "
            "choose at most 14");
}

TEST_F(FewShot, MeasuresACheckpointOnDataOfOtherClasses) {
  TempDir folder;
  train(folder / "run");
  EvaluateCheckpointOptions options{
      .checkpoint = folder / "run/checkpoints/pretrain",  // Of three classes.
      .data = "two",
      .few_shot = {.shots = {1, 9}, .num_seeds = 2},
      .open = open_tiny};
  const CheckpointEvaluation found = evaluate_checkpoint(options);
  EXPECT_EQ(found.split, "test");
  const auto json = to_json(found);
  EXPECT_EQ(json["images"], 9);
  const Metrics direct = few_shot(*load_model(options.checkpoint), open_tiny("two", "train"),
                                  open_tiny("two", "test"), options.few_shot, {});
  EXPECT_EQ(json["few_shot"]["9-shot"], direct.at("few_shot.9-shot"));
  EXPECT_TRUE(json["few_shot"].contains("1-shot_l2"));
  EXPECT_FALSE(json.contains("accuracy"));
  EXPECT_NE(to_text(found).find("\n9-shot           "), std::string::npos) << to_text(found);
  options.split = "train";
  EXPECT_EQ(error_of([&] { evaluate_checkpoint(options); }),
            "usage: --shots learns from the split 'train' and cannot measure on it; choose --split "
            "validation or test");
}

}  // namespace
}  // namespace moesaic
