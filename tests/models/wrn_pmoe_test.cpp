// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/wrn_pmoe/wrn_pmoe.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "base/support.h"
#include "moesaic/nn/patches.h"
#include "moesaic/prune/plan.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

/// A network of 4 experts that select 3 of the 9 patches of a map of 6 x 6.
WrnPMoEConfig small_wrn(int64_t kernel = 3, int64_t classes = 3) {
  WrnPMoEConfig config;
  config.image_size = 24;
  config.classes = classes;
  config.widening = 0.125;  // 2, 4 and 8 channels.
  config.moe->patch_size = 2;
  config.moe->kernel = kernel;
  config.moe->router.selected = 3;
  config.moe->router.init_std = 0.3;
  return config;
}

Tensor wide_images(int64_t count) {
  return testing::randn({count, 3, 24, 24}, 7, torch::kDouble);
}

std::shared_ptr<WrnPMoE> doubled(const WrnPMoEConfig& config) {
  auto model = std::make_shared<WrnPMoE>(config, 3);
  model->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  int64_t seed = 20;  // Values that a fresh network has equal everywhere are told apart.
  for (Tensor& parameter : model->parameters()) {
    if (parameter.dim() < 3 && parameter.size(0) != 4)
      parameter.add_(testing::randn(parameter.sizes().vec(), ++seed, torch::kDouble), 0.3);
  }
  for (Tensor* tensor : {&model->experts->weight, &model->experts->bias, &model->experts->b}) {
    tensor->add_(testing::randn(tensor->sizes().vec(), ++seed, torch::kDouble), 0.3);
  }
  return model;
}

/// Normalises [B, C, H, W] by its own mean and variance.
Tensor normalised(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Tensor mean = x.mean({0, 2, 3}, true);
  const Tensor var = (x - mean).square().mean({0, 2, 3}, true);
  return (x - mean) / (var + 1e-3).sqrt() * weight.view({1, -1, 1, 1}) + bias.view({1, -1, 1, 1});
}

/// The mixture as the paper has it: each expert computes the whole map, in which the patches that
/// it did not select are zeros.
Tensor plain_mixture(const WrnPMoE& model, const Tensor& map_BCSS) {
  const nn::MapExpertsImpl& experts = *model.experts;
  const WrnMixtureConfig& moe = *model.settings().moe;
  const int64_t patch = moe.patch_size, side = map_BCSS.size(3), each = side / patch;
  const Tensor patches = nn::patches_of(map_BCSS, patch);
  std::vector<Tensor> outputs;
  for (int64_t e = 0; e < experts.count(); ++e) {
    const Tensor values = patches.matmul(model.moe->router->weight[e]);
    const Tensor gates = values.softmax(1);
    Tensor masked = torch::zeros_like(map_BCSS);
    for (int64_t i = 0; i < map_BCSS.size(0); ++i) {
      const Tensor best = std::get<1>(values[i].topk(moe.router.selected));
      for (int64_t r = 0; r < moe.router.selected; ++r) {
        const auto place = best[r].item<int64_t>();
        const int64_t y = place / each * patch, x = place % each * patch;
        const auto part = [&](const Tensor& map) {
          return map[i].slice(1, y, y + patch).slice(2, x, x + patch);
        };
        part(masked).copy_(part(map_BCSS) * gates[i][place]);
      }
    }
    outputs.push_back(torch::conv2d(normalised(masked, experts.weight[e], experts.bias[e]).relu(),
                                    experts.w[e], experts.b[e],
                                    /*stride=*/1, /*padding=*/moe.kernel / 2));
  }
  return torch::cat(outputs, 1);
}

TEST(WrnPMoE, IsTheNetworkOfThePaper) {
  for (const int64_t kernel : {1, 3}) {
    const auto model = doubled(small_wrn(kernel));
    const torch::NoGradGuard no_grad;
    const Tensor images = wide_images(5), map = model->trunk->forward(images);
    EXPECT_EQ(map.sizes(), (std::vector<int64_t>{5, 8, 6, 6}));
    const Tensor y = normalised(plain_mixture(*model, map), model->norm->weight, model->norm->bias);
    const Tensor features = y.relu().mean({2, 3});
    const ModelOutput output = model->forward(images);
    testing::expect_close(output.pre_logits, features, 1e-10);
    testing::expect_close(output.logits, model->head->forward(features), 1e-10);
  }
}

TEST(WrnPMoE, TrainsByTheGradientOfWhatItComputes) {
  for (const int64_t kernel : {1, 3}) {
    const auto model = doubled(small_wrn(kernel));
    const Tensor images = wide_images(3);
    const auto loss = [&] { return model->forward(images).logits.square().sum(); };
    loss().backward();
    const std::vector<Tensor> of = {model->moe->router->weight, model->experts->weight,
                                    model->experts->bias, model->experts->w, model->experts->b};
    const torch::NoGradGuard no_grad;
    for (const Tensor& parameter : of) {
      const Tensor values = parameter.view({-1});
      const int64_t at = values.size(0) / 2;
      const double old = values[at].item<double>(), step = 1e-6;
      const auto moved = [&](double by) {
        values[at] = old + by;
        const auto found = loss().item<double>();
        values[at] = old;
        return found;
      };
      const double slope = (moved(step) - moved(-step)) / (2 * step);
      EXPECT_NEAR(parameter.grad().view({-1})[at].item<double>(), slope,
                  1e-5 * std::max(1.0, std::abs(slope)));
    }
  }
}

TEST(WrnPMoE, RunningStatisticsAreOfTheWholeMap) {
  const auto model = doubled(small_wrn());
  const torch::NoGradGuard no_grad;
  const Tensor images = wide_images(40);
  for (int step = 0; step < 1500; ++step) model->forward(images.slice(0, 0, 4));
  const Tensor trained = model->forward(images.slice(0, 0, 4)).logits;
  model->eval();
  // The running variance is of a sample: 144 positions in 143.
  testing::expect_close(model->forward(images.slice(0, 0, 4)).logits, trained, 0.05);
  // In evaluation an image does not depend on the others.
  testing::expect_close(model->forward(images).logits.slice(0, 0, 4),
                        model->forward(images.slice(0, 0, 4)).logits, 1e-10);
}

TEST(WrnPMoE, WithoutMixtureIsTheWideResNet) {
  WrnPMoEConfig config = small_wrn();
  config.moe.reset();
  WrnPMoE model(config, 3);
  EXPECT_TRUE(model.moe_blocks().empty());
  EXPECT_FALSE(model.patch_tokens());
  const Tensor images = wide_images(2).to(torch::kFloat);
  EXPECT_EQ(model.trunk->forward(images).sizes(), (std::vector<int64_t>{2, 8, 6, 6}));
  EXPECT_EQ(model.forward(images).logits.sizes(), (std::vector<int64_t>{2, 3}));
}

TEST(WrnPMoE, StridesPadAtTheEndAsTensorFlow) {
  nn::Maps maps{1, 4};
  const nn::Convolution made(maps,
                             nn::ConvolutionOptions{.outputs = 1, .stride = 2, .pads_end = true},
                             at::make_generator<at::CPUGeneratorImpl>(1));
  const torch::NoGradGuard no_grad;
  made->weight.fill_(1.0);
  const Tensor image = torch::arange(16.0F).view({1, 1, 4, 4});
  // The windows begin at 0 and 2, the second ones reach one over the end.
  const Tensor sums = torch::tensor({{45.0F, 39.0F}, {66.0F, 50.0F}});
  EXPECT_TRUE(at::equal(made->forward(image)[0][0], sums));
  EXPECT_EQ(maps.side, 2);
}

TEST(WrnPMoE, TwoClassesShareOneOutput) {
  const auto model = doubled(small_wrn(1, 2));
  model->eval();
  const Tensor logits = model->forward(wide_images(3)).logits;
  EXPECT_EQ(model->head->weight.size(0), 1);
  EXPECT_TRUE(at::equal(logits.select(1, 0), -logits.select(1, 1)));
  model->reset_head(5);
  EXPECT_EQ(model->forward(wide_images(3)).logits.size(1), 5);
}

TEST(WrnPMoE, PrunedExpertsLeaveZeros) {
  const auto model = doubled(small_wrn());
  model->eval();
  {
    const torch::NoGradGuard no_grad;
    for (int64_t e = 0; e < 4; ++e) model->moe->router->weight[e].fill_(e % 2 == 1 ? 9 : 1);
  }
  const Tensor images = wide_images(3);
  const torch::NoGradGuard no_grad;
  const auto masked = doubled(small_wrn());
  load_state(*masked, state_of(*model), "test");
  masked->eval();
  for (const int64_t e : {0, 2}) {
    // Neither what was selected nor the rest leaves anything.
    masked->experts->w[e].zero_();
    masked->experts->b[e].zero_();
  }
  apply_plan(*model, plan_pruning(*model, nullptr, "router-magnitude", KeepSpec::fraction(0.5)));
  EXPECT_EQ(model->moe->kept(), (std::vector<int64_t>{1, 3}));
  testing::expect_close(model->forward(images).logits, masked->forward(images).logits, 1e-12);
  WrnPMoE again(parse<WrnPMoEConfig>(Value::from_json(model->config(), "model"), "model"), 9);
  again.to(torch::kDouble);
  load_state(again, state_of(*model), "test");
  again.eval();
  EXPECT_TRUE(at::equal(again.forward(images).logits, model->forward(images).logits));
  EXPECT_THAT(replacement_problem(*model, kReplaceByMean), HasSubstr("no mean can replace one"));
}

TEST(WrnPMoE, SaysWhatDoesNotFit) {
  const auto problem = [](const std::function<void(WrnPMoEConfig&)>& change) {
    WrnPMoEConfig config = small_wrn();
    change(config);
    return config_problem(config).text;
  };
  EXPECT_EQ(problem([](WrnPMoEConfig&) {}), "");
  EXPECT_THAT(problem([](WrnPMoEConfig& c) { c.moe->router.selected = 10; }),
              HasSubstr("cannot select 10 of 9 patches"));
  EXPECT_THAT(problem([](WrnPMoEConfig& c) { c.moe->patch_size = 4; }),
              HasSubstr("patches of 4 x 4 do not divide the last feature map, 6 x 6"));
  EXPECT_THAT(problem([](WrnPMoEConfig& c) { c.moe->experts = 3; }),
              HasSubstr("3 experts cannot share out the last group's 8 channels"));
  EXPECT_THAT(problem([](WrnPMoEConfig& c) { c.moe->kernel = 2; }), HasSubstr("has no middle"));
}

}  // namespace
}  // namespace moesaic
