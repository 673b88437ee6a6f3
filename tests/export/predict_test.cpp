// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/predict.h"

#include "base/support.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/export/formats.h"
#include "support/matchers.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

TEST(Predict, GivesTheForwardPassInAnyBatches) {
  const auto model = small_vmoe();
  const at::Tensor images = small_images(7);
  const ModelOutput wanted = run(*model, images);
  for (const int64_t batch_size : {1, 3, 7, 100}) {
    const auto found = predict(*model, images, {.returns_routing = true, .batch_size = batch_size});
    ASSERT_EQ(found.size(), 6U);
    expect_close(found.at("logits"), wanted.logits, 1e-5);
    expect_close(found.at("pre_logits"), wanted.pre_logits, 1e-5);
    expect_close(found.at("routing.1.logits"), wanted.routings[0].logits_TE, 1e-5);
    expect_close(found.at("routing.3.combine"), combine_weights(wanted.routings[1].routing), 1e-5);
  }
  EXPECT_EQ(predict(*model, images).size(), 2U);
}

TEST(Predict, CombinePutsPrunedExpertsAtZero) {
  const auto model = small_vmoe();
  model->moe_blocks()[0].layer->keep_experts({1, 4});
  const at::Tensor images = small_images(4);
  const auto found = predict(*model, images, {.returns_routing = true});
  const at::Tensor combine = found.at("routing.1.combine");
  EXPECT_EQ(combine.sizes(), (std::vector<int64_t>{4 * 17, 6}));
  const at::Tensor weights = combine_weights(run(*model, images).routings[0].routing);
  EXPECT_GT(weights.count_nonzero().item<int64_t>(), 0);
  at::Tensor wanted = torch::zeros_like(combine);
  wanted.index_copy_(1, torch::tensor({1, 4}), weights);
  EXPECT_TRUE(at::equal(combine, wanted));
}

TEST(Predict, ACapacityIsSharedByAllImages) {
  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.router.capacity.factor = 0.5;
  const auto model = small_vmoe(config);
  const at::Tensor images = small_images(6);
  const auto found = predict(*model, images, {.returns_routing = true, .batch_size = 2});
  EXPECT_TRUE(at::equal(found.at("logits"), run(*model, images).logits));
  EXPECT_LT(found.at("routing.1.combine").count_nonzero().item<int64_t>(), 6 * 17 * 2);
}

/// Groups do not know of one another: the last one is routed as if it were alone.
TEST(Predict, TheLastGroupHasTheTokensThatAreLeft) {
  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.router.capacity.factor = 0.5;
  config.encoder.moe.group_size = 34;
  const auto model = small_vmoe(config);
  const at::Tensor images = small_images(5);
  const auto found = predict(*model, images, {.returns_routing = true, .batch_size = 2});
  const at::Tensor& logits = found.at("logits");
  EXPECT_TRUE(at::equal(logits, run(*model, images).logits));
  const torch::NoGradGuard no_grad;
  expect_close(to_torchscript(*model).forward({images}).toTensor(), logits, 1e-5);
  expect_close(predict(*model, images.narrow(0, 0, 4)).at("logits"), logits.narrow(0, 0, 4), 1e-5);
  expect_close(predict(*model, images.narrow(0, 4, 1)).at("logits"), logits.narrow(0, 4, 1), 1e-5);
  // Of 17 tokens an expert takes ceil(17 * 2 * 0.5 / 6) = 3, raised to 4.
  const at::Tensor last = found.at("routing.1.combine").narrow(0, 4 * 17, 17);
  EXPECT_EQ((last > 0).sum(0).max().item<int64_t>(), 4);
}

TEST(Predict, NoiseInEvaluationIsTheSameEachTimeAndForAnyBatch) {
  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.router.capacity.factor = 0.0;
  config.encoder.moe.router.noise_std = 6.0;
  const at::Tensor images = small_images(4);
  const at::Tensor quiet = predict(*small_vmoe(config), images).at("logits");
  config.encoder.moe.router.noise = kNoiseAlways;
  const auto model = small_vmoe(config);
  const at::Tensor noisy = predict(*model, images).at("logits");
  EXPECT_FALSE(at::allclose(noisy, quiet, 0.0, 1e-3));
  EXPECT_TRUE(at::equal(predict(*model, images).at("logits"), noisy));
  EXPECT_TRUE(at::equal(run(*model, images).logits, noisy));
  const at::Tensor apart = predict(*model, images, {.batch_size = 3}).at("logits");
  EXPECT_TRUE(at::allclose(apart, noisy, 1e-4, 1e-5));
  const at::Tensor twins = predict(*model, images.slice(0, 0, 1).repeat({4, 1, 1, 1})).at("logits");
  EXPECT_FALSE(at::allclose(twins[0], twins[1], 0.0, 1e-3));  // each has noise of its own
}

TEST(Predict, NoImagesGiveEmptyOutputs) {
  const auto model = small_vmoe();
  const auto found = predict(*model, small_images(0), {.returns_routing = true});
  EXPECT_EQ(found.at("logits").sizes(), (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(found.at("routing.1.combine").sizes(), (std::vector<int64_t>{0, 6}));
}

TEST(Predict, RefusesABatchOfNothing) {
  const auto model = small_vmoe();
  test::usage_of([&] { predict(*model, small_images(1), {.batch_size = 0}); });
}

class PredictFile : public ::testing::Test {
 protected:
  const test::TempDir folder_;
  const fs::path in_ = folder_ / "in.safetensors", out_ = folder_ / "out.safetensors";
  const std::shared_ptr<VMoE> model_ = small_vmoe();
};

TEST_F(PredictFile, ReadsImagesAndWritesOutputs) {
  const at::Tensor images = small_images(3);
  write_tensors(in_, {{"images", images}, {"other", torch::ones({2})}});
  predict_file(*model_, in_, out_, {.returns_routing = true});
  const TensorMap found = read_tensors(out_);
  for (const auto& [name, tensor] : predict(*model_, images, {.returns_routing = true})) {
    EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
  }
}

TEST_F(PredictFile, ConvertsHalfPrecision) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    const at::Tensor images = small_images(3).to(type);
    write_tensors(in_, {{"images", images}});
    const fs::path out = folder_ / fmt::format("{}.safetensors", c10::toString(type));
    predict_file(*model_, in_, out);
    EXPECT_TRUE(at::equal(read_tensors(out).at("logits"),
                          predict(*model_, images.to(at::kFloat)).at("logits")))
        << type;
  }
}

TEST_F(PredictFile, RefusesOtherInputInOneLine) {
  const auto message = [&](const TensorMap& tensors) {
    write_tensors(in_, tensors);
    const std::string text = test::usage_of([&] { predict_file(*model_, in_, out_); });
    EXPECT_THAT(text, HasSubstr(in_.string()));
    return text;
  };
  const at::Tensor images = small_images(2);
  EXPECT_THAT(message({{"image", images}}),
              AllOf(HasSubstr("no tensor 'images'"), HasSubstr("did you mean 'image'")));
  EXPECT_THAT(message({}), HasSubstr("no tensor 'images'; it holds none"));
  TensorMap weights;
  for (int i = 0; i < 24; ++i) weights["encoder.block." + std::to_string(i)] = images;
  weights["head"] = weights["gates"] = images;
  EXPECT_THAT(message(weights), EndsWith("no tensor 'images'; it holds 26 tensors, such "
                                         "as 'gates', 'head', 'encoder.block.0'"));
  test::put(folder_ / "notes.txt", "no tensors, only words");
  EXPECT_THAT(test::usage_of([&] { predict_file(*model_, folder_ / "notes.txt", out_); }),
              HasSubstr("notes.txt: not a safetensors file"));
  EXPECT_THAT(message({{"images", images.to(torch::kDouble)}}),
              AllOf(HasSubstr("F32"), HasSubstr("F64")));
  EXPECT_THAT(message({{"images", images[0]}}),
              AllOf(HasSubstr("[batch, 1, 8, 8]"), HasSubstr("[1, 8, 8]")));
  EXPECT_THAT(message({{"images", torch::zeros({2, 3, 8, 8})}}), HasSubstr("[2, 3, 8, 8]"));
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(PredictFile, NamesAnImageThatIsNotFinite) {
  const at::Tensor images = small_images(4);
  images[2][0][3][3] = std::numeric_limits<float>::infinity();
  write_tensors(in_, {{"images", images}});
  EXPECT_THAT(test::failure_of([&] { predict_file(*model_, in_, out_); }),
              HasSubstr("in.safetensors: image 2 of 'images'"));
}

TEST_F(PredictFile, WritesOverNothing) {
  write_tensors(in_, {{"images", small_images(2)}});
  const std::string before = test::get(in_);
  EXPECT_THAT(test::usage_of([&] { predict_file(*model_, in_, in_); }),
              HasSubstr("already exists"));
  EXPECT_EQ(test::get(in_), before);
}

}  // namespace
}  // namespace moesaic
