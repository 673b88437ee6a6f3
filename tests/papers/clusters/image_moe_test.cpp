// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/clusters.h"

#include "moesaic/base/error.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/nn/init.h"
#include "moesaic/ops/routing.h"
#include "support/models.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

ImageMoEConfig small_images(const std::string& expert = "resnet18") {
  return {.expert = expert, .num_experts = 3, .image_size = 8, .num_classes = 5, .width = 0.1};
}

std::shared_ptr<ImageMoE> images_model(const ImageMoEConfig& config) {
  auto model = std::make_shared<ImageMoE>(config, 1);
  const torch::NoGradGuard no_grad;
  if (config.router) model->moe->router->weight.normal_(0, 0.1, nn::make_generator(3));
  return model;
}

at::Tensor small_batch(int64_t count) {
  return randn({count, 3, 8, 8}, 2, torch::kFloat);
}

/// Section 6.2: the router as the convolution that it is.
at::Tensor convolved_logits(const ImageMoE& model, const at::Tensor& images) {
  const at::Tensor& weight = model.moe->router->weight;
  const at::Tensor filters = weight.slice(1, 0, 48).reshape({-1, 3, 4, 4});
  return torch::conv2d(images, filters, weight.select(1, 48), 4).sum({2, 3});
}

/// Each expert on the images that chose it, times its probability.
at::Tensor plain_output(const ImageMoE& model, const at::Tensor& images, const at::Tensor& scores) {
  const at::Tensor choice = scores.argmax(1), gate = scores.softmax(1);
  at::Tensor output = torch::zeros({images.size(0), model.num_classes()});
  for (int64_t e = 0; e < scores.size(1); ++e) {
    const at::Tensor own = choice.eq(e).nonzero().squeeze(1);
    if (own.size(0) == 0) continue;
    const auto& expert = model.experts->network(e);
    const at::Tensor rows = expert->head->forward(expert->features(images.index_select(0, own)));
    output = output.index_add(0, own, rows * gate.index_select(0, own).select(1, e).unsqueeze(1));
  }
  return output;
}

class ImageExperts : public ::testing::TestWithParam<std::string> {};

TEST_P(ImageExperts, ForwardAndGradientsAreThoseOfThePaper) {
  const auto model = images_model(small_images(GetParam()));
  model->train();
  const at::Tensor images = small_batch(24);
  const ModelOutput output = model->forward(images, nn::make_generator(5));
  const RoutingRecord& record = output.routings.at(0);
  const at::Tensor noise = (record.noisy_logits_TE - record.logits_TE).detach();
  EXPECT_GE(noise.min().item<float>(), -1e-5F);
  EXPECT_GT(noise.max().item<float>(), 0.5F);
  EXPECT_LT(noise.max().item<float>(), 1.0F + 1e-5F);
  const at::Tensor scores = convolved_logits(*model, images) + noise;
  expect_close(record.noisy_logits_TE, scores, 1e-5);
  const at::Tensor wanted = plain_output(*model, images, scores);
  expect_close(output.logits, wanted, 1e-4);
  const at::Tensor weight = randn({24, 5}, 7, torch::kFloat);
  const std::vector<at::Tensor> parameters = model->parameters();
  const auto found = torch::autograd::grad({(output.logits * weight).sum()}, parameters);
  const auto plain = torch::autograd::grad({(wanted * weight).sum()}, parameters);
  for (size_t i = 0; i < parameters.size(); ++i) expect_close(found[i], plain[i], 1e-3);
}

INSTANTIATE_TEST_SUITE_P(All, ImageExperts, ::testing::ValuesIn(nn::image_network_names()),
                         [](const auto& info) { return info.param; });

TEST(ImageMoE, TheEmbeddingIsThatOfTheExpertThatSawTheImage) {
  const auto model = images_model(small_images());
  model->eval();
  const torch::NoGradGuard no_grad;
  const at::Tensor images = small_batch(9);
  const ModelOutput output = model->forward(images);
  const at::Tensor choice = output.routings.at(0).routing.choice;
  for (int64_t i = 0; i < 9; ++i) {
    const auto& expert = model->experts->network(choice[i][0].item<int64_t>());
    expect_close(output.pre_logits[i], expert->features(images.slice(0, i, i + 1))[0], 1e-5);
  }
}

TEST(ImageMoE, BeginsWithoutPreferenceAndDrawsNoNoiseInEvaluation) {
  const auto model = std::make_shared<ImageMoE>(small_images("cnn"), 1);
  EXPECT_EQ(model->moe->router->weight.abs().max().item<double>(), 0.0);
  model->eval();
  const RoutingRecord record = model->forward(small_batch(6)).routings.at(0);
  EXPECT_TRUE(torch::equal(record.logits_TE, record.noisy_logits_TE));
  expect_close(record.routing.gate, torch::full({6}, 1.0 / 3), 1e-6);
}

TEST(ImageMoE, AnExpertMayHaveOneImageOrNoneInTraining) {
  for (const std::string& expert : nn::image_network_names()) {
    ImageMoEConfig config = small_images(expert);
    config.image_size = 4;
    config.router->noise_scale = 0.0;
    const auto model = images_model(config);
    model->train();
    // Expert 1 takes bright images, expert 0 dark ones.
    const at::Tensor router = model->moe->router->weight.detach().zero_();
    router[0].slice(0, 0, 48).fill_(-1.0);
    router[1].slice(0, 0, 48).fill_(1.0);
    at::Tensor images = torch::ones({7, 3, 4, 4}) + 0.1 * randn({7, 3, 4, 4}, 1, torch::kFloat);
    images[4].neg_();
    const ModelOutput output = model->forward(images, nn::make_generator(1));
    EXPECT_TRUE(torch::equal(output.routings[0].routing.offsets.to(torch::kLong),
                             torch::tensor({0, 1, 7, 7}, torch::kLong)));
    output.logits.square().sum().backward();
    EXPECT_TRUE(model->experts->network(0)->head->weight.grad().isfinite().all().item<bool>());
    EXPECT_FALSE(model->experts->network(2)->head->weight.grad().defined());
    for (const at::Tensor& buffer : model->buffers()) {
      EXPECT_TRUE(buffer.isfinite().all().item<bool>());
    }
  }
}

TEST(ImageMoE, ASingleExpertIsTheNetworkItself) {
  ImageMoEConfig config = small_images();
  config.router.reset();
  config.num_experts = 1;
  const auto model = images_model(config);
  model->eval();
  const at::Tensor images = small_batch(4);
  const ModelOutput output = model->forward(images);
  EXPECT_TRUE(output.routings.empty());
  const at::Tensor features = model->experts->network(0)->features(images);
  expect_close(output.pre_logits, features, 1e-5);
  expect_close(output.logits, model->experts->network(0)->head->forward(features), 1e-5);
}

TEST(ImageMoE, PrunedEqualsTheMixtureWhoseOtherExpertsGiveZero) {
  for (const std::string& expert : nn::image_network_names()) {
    const auto full = images_model(small_images(expert)),
               pruned = images_model(small_images(expert));
    ASSERT_EQ(pruned->moe_blocks().size(), 1U);
    pruned->moe->keep_experts({0, 2});
    const torch::NoGradGuard no_grad;
    full->experts->network(1)->reset_head(5);
    for (const auto& model : {full, pruned}) model->eval();
    const ModelOutput wanted = full->forward(small_batch(24));
    const ModelOutput found = pruned->forward(small_batch(24));
    const at::Tensor lost = wanted.routings[0].routing.choice.squeeze(1).eq(1);
    ASSERT_GT(lost.sum().item<int64_t>(), 0);
    expect_close(found.logits, wanted.logits, 1e-5);
    EXPECT_EQ(found.pre_logits.abs().sum(1).masked_select(lost).sum().item<double>(), 0.0);
    EXPECT_TRUE(torch::equal(found.routings[0].routing.choice, wanted.routings[0].routing.choice));
    EXPECT_EQ(pruned->named_parameters().size(), 2 * (full->named_parameters().size() - 1) / 3 + 1);

    EXPECT_EQ(pruned->config()["router"]["kept_experts"], (std::vector<int64_t>{0, 2}));
    const auto again = testing::rebuilt(*pruned);
    EXPECT_TRUE(torch::equal(again->forward(small_batch(24)).logits, found.logits));
  }
}

TEST(ImageMoE, AnImageMayBeSeenBySeveralExperts) {
  ImageMoEConfig config = small_images("cnn");
  config.router->k = 2;
  const auto model = images_model(config);
  model->eval();
  const torch::NoGradGuard no_grad;
  const at::Tensor images = small_batch(9);
  const ModelOutput output = model->forward(images);
  const at::Tensor weights = combine_weights(output.routings[0].routing);
  at::Tensor wanted = torch::zeros({9, 5});
  for (int64_t e = 0; e < 3; ++e) {
    const auto& network = model->experts->network(e);
    wanted += weights.select(1, e).unsqueeze(1) * network->head->forward(network->features(images));
  }
  EXPECT_TRUE(weights.ne(0).sum(1).eq(2).all().item<bool>());
  expect_close(output.logits, wanted, 1e-5);
}

TEST(ImageMoE, NoImageAtAllTellsTheShapes) {
  const auto model = images_model(small_images());
  model->eval();
  const ModelOutput output = model->forward(small_batch(0));
  EXPECT_EQ(output.logits.sizes(), (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(output.pre_logits.size(0), 0);
}

TEST(ImageMoE, ItsConfigurationRebuildsItAndCountsItsParameters) {
  for (const std::string& expert : nn::image_network_names()) {
    const auto model = images_model(small_images(expert));
    const auto shape = meta_copy(*model);
    EXPECT_TRUE(shape->parameters().front().is_meta());
    const MetaKernels kernels;
    const at::Tensor images = torch::empty({6, 3, 8, 8}, torch::kMeta);
    EXPECT_EQ(shape->forward(images).logits.sizes(), (std::vector<int64_t>{6, 5}));
    model->eval();
    EXPECT_TRUE(torch::equal(testing::rebuilt(*model)->forward(small_batch(4)).logits,
                             model->forward(small_batch(4)).logits));
  }
}

TEST(ImageMoE, AFreshHeadIsZeroAndTrains) {
  const auto model = images_model(small_images("cnn"));
  model->reset_head(2);
  EXPECT_EQ(model->num_classes(), 2);
  const at::Tensor logits = model->forward(small_batch(4)).logits;
  EXPECT_TRUE(torch::equal(logits, torch::zeros({4, 2})));
  logits.select(1, 0).sum().backward();
  EXPECT_EQ(model->config().at("num_classes"), 2);
  testing::rebuilt(*model);
}

TEST(ImageMoE, RefusesWhatDoesNotFit) {
  ImageMoEConfig config = small_images();
  config.router->patch_size = 3;
  EXPECT_FALSE(config_problem(config).empty());
  config = small_images();
  config.router.reset();
  EXPECT_FALSE(config_problem(config).empty());
  const auto model = images_model(small_images());
  EXPECT_THROW(model->forward(torch::zeros({2, 3, 8, 4})), Error);
  EXPECT_THROW(model->forward(torch::zeros({2, 1, 8, 8})), Error);
}

}  // namespace
}  // namespace moesaic
