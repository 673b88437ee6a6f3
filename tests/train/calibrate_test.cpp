// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/evaluate.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/support.h"
#include "moesaic/nn/mlp_experts.h"
#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using ::testing::Pair;

constexpr int64_t kTokens = 5;  // of an image: four patches and the class token

/// Sums of a layer with four experts, by plain loops.
struct PlainSums {
  double tokens = 0, rows[4] = {}, gates[4] = {}, norms[4] = {};
};

/// Runs the network on these images, one batch after another, and loops over the rows of its layer.
PlainSums plain_sums(Model& model, const at::Tensor& images, int64_t batch) {
  const torch::NoGradGuard no_grad;
  const MoEBlock block = model.moe_blocks().at(0);
  PlainSums sums;
  nn::MoELayer layer = block.layer;
  layer->set_observer([&](const RoutingRecord& record, const at::Tensor& x_Td) {
    const auto* experts = layer->experts->as<nn::MlpExperts>();
    sums.tokens += static_cast<double>(x_Td.size(0));
    for (int64_t e = 0; e < 4; ++e) {
      const auto end = record.routing.offsets[e + 1].item<int64_t>();
      for (auto row = record.routing.offsets[e].item<int64_t>(); row < end; ++row) {
        const at::Tensor x = x_Td[record.routing.token[row].item<int64_t>()].to(at::kDouble);
        const auto in = [&](const at::Tensor& all) { return all[e].to(at::kDouble); };
        const at::Tensor hidden =
            at::gelu(x.unsqueeze(0).mm(in(experts->w1)) + in(experts->b1), "tanh");
        const at::Tensor output = hidden.mm(in(experts->w2)) + in(experts->b2);
        sums.rows[e] += 1;
        sums.gates[e] += record.routing.gate[row].item<double>();
        sums.norms[e] += output.norm().item<double>();
      }
    }
  });
  model.eval();
  for (int64_t first = 0; first < images.size(0); first += batch) {
    model.forward(images.slice(0, first, first + batch));
  }
  layer->set_observer({});
  return sums;
}

void expect_sums(const ExpertStatistics& use, const PlainSums& wanted) {
  ASSERT_EQ(use.size(), 1U);
  const LayerStatistics& layer = use.at(1);
  EXPECT_EQ(static_cast<double>(layer.tokens), wanted.tokens);
  const auto sum = [&](Powers powers, int64_t e) {
    return layer.sums.at(powers)[e].item<double>();
  };
  for (int64_t e = 0; e < 4; ++e) {
    EXPECT_EQ(sum({0, 0}, e), wanted.rows[e]) << e;
    EXPECT_NEAR(sum({1, 0}, e), wanted.gates[e], 1e-5 * wanted.gates[e]) << e;
    EXPECT_NEAR(sum({0, 1}, e), wanted.norms[e], 1e-5 * wanted.norms[e]) << e;
  }
}

/// Returns the images in the order of a seed.
at::Tensor ordered(const std::shared_ptr<const Dataset>& data, uint64_t seed) {
  return Loader(data, {.batch_size = data->size(), .seed = seed, .shuffle = true}).next().inputs;
}

/// Experts take so few tokens of a batch that it matters which images share one.
std::string crowded_model() {
  std::string text = kModel;
  const std::string router = R"("num_selected_experts": 2,)";
  text.replace(text.find(router), router.size(),
               router + R"( "dispatcher": {"capacity_factor": 0.6},)");
  return text;
}

TEST(Calibrate, SumsUpTheFirstImagesOfTheSeedsOrderByBatches) {
  const auto data = quarters("three", "train", 3, 18);
  for (const std::string& text : {std::string(kModel), crowded_model()}) {
    const auto model = tiny_model(text);
    const PlainSums wanted = plain_sums(*model, ordered(data, 7).narrow(0, 0, 10), 4);
    expect_sums(calibrate(*model, data, {.num_images = 10, .batch_size = 4, .seed = 7}), wanted);
    EXPECT_GT(wanted.rows[0] + wanted.rows[1] + wanted.rows[2] + wanted.rows[3], 0);
  }
}

TEST(Calibrate, TakesAllImagesWhereThereAreFewer) {
  const auto data = quarters("three", "train", 3, 7);
  const auto model = tiny_model();
  const ExpertStatistics use = calibrate(*model, data, {.num_images = 1000, .batch_size = 4});
  EXPECT_EQ(use.at(1).tokens, 7 * kTokens);
  expect_sums(use, plain_sums(*model, ordered(data, 0), 7));
}

TEST(Calibrate, IsTheSameForAnyNumberOfThreadsAndInEvaluationMode) {
  const auto data = quarters("three", "train", 3, 18);
  const auto model = tiny_model();  // Its router is noisy in training.
  const auto numbers = [&](int64_t threads, uint64_t seed) {
    model->train();
    const ExpertStatistics use =
        calibrate(*model, data,
                  {.num_images = 9, .batch_size = 4, .num_loader_threads = threads, .seed = seed});
    EXPECT_TRUE(model->is_training()) << "the network is as it was";
    return use.at(1).outputs_Eo;
  };
  const at::Tensor one = numbers(1, 7);
  EXPECT_TRUE(at::equal(numbers(0, 7), one));
  EXPECT_TRUE(at::equal(numbers(3, 7), one));
  EXPECT_FALSE(at::equal(numbers(1, 8), one)) << "another seed has other images";
  expect_sums(calibrate(*model, data, {.num_images = 9, .batch_size = 4, .seed = 7}),
              plain_sums(*model, ordered(data, 7).narrow(0, 0, 9), 4));
}

TEST(Calibrate, TellsHowFarItIs) {
  std::map<int64_t, int64_t> told;
  const auto tell = [&](int64_t done, int64_t total) { told[done] = total; };
  calibrate(*tiny_model(), quarters("three", "train", 3, 18),
            {.num_images = 10, .batch_size = 4, .progress = tell});
  EXPECT_THAT(told, ElementsAre(Pair(0, 10), Pair(4, 10), Pair(8, 10), Pair(10, 10)));
}

TEST(Calibrate, RefusesImagesThatDoNotFitAndNone) {
  std::string larger = kModel;
  larger.replace(larger.find(R"("image_size": 4)"), 15, R"("image_size": 8)");
  EXPECT_THAT(
      test::usage_of([&] { calibrate(*tiny_model(larger), quarters("three", "train", 3, 18)); }),
      HasSubstr("4"));
  EXPECT_THAT(test::usage_of([&] { calibrate(*tiny_model(), quarters("three", "train", 3, 0)); }),
              HasSubstr("'three' has no images to calibrate by"));
}

TEST(CalibrationSplit, IsTheValidationSplitWhereThereIsOne) {
  EXPECT_EQ(calibration_split({"test", "validation"}), "validation");
  EXPECT_EQ(calibration_split({"test"}), "train");
}

}  // namespace
}  // namespace moesaic
