// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/pmoe.h"

#include "base/support.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/models/registry.h"
#include "moesaic/nn/patches.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/prune/plan.h"
#include "prune/plan_networks.h"
#include "support/matchers.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;

/// A network of 4 experts that select 3 of the 9 patches of a map of 6 x 6.
WrnPMoEConfig small_wrn(int64_t kernel = 3, int64_t classes = 3) {
  WrnPMoEConfig config{
      .image_size = 24, .num_classes = classes, .widen_factor = 0.125};  // 2, 4 and 8 channels.
  config.moe->patch_size = 2;
  config.moe->kernel_size = kernel;
  config.moe->router.num_selected_patches = 3;
  config.moe->router.init_std = 0.3;
  return config;
}

Tensor wide_images(int64_t count) {
  return randn({count, 3, 24, 24}, 7);
}

std::shared_ptr<WrnPMoE> doubled(const WrnPMoEConfig& config) {
  auto model = std::make_shared<WrnPMoE>(config, 3);
  model->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  int64_t seed = 20;  // Values that a fresh network has equal everywhere are told apart.
  for (Tensor& parameter : model->parameters()) {
    if (parameter.dim() < 3 && parameter.size(0) != 4)
      parameter.add_(randn(parameter.sizes().vec(), ++seed), 0.3);
  }
  for (Tensor* tensor : {&model->experts->weight, &model->experts->bias, &model->experts->b}) {
    tensor->add_(randn(tensor->sizes().vec(), ++seed), 0.3);
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
  for (int64_t e = 0; e < experts.num_experts(); ++e) {
    const Tensor values = patches.matmul(model.moe->router->weight[e]);
    const Tensor gates = values.softmax(1);
    Tensor masked = torch::zeros_like(map_BCSS);
    for (int64_t i = 0; i < map_BCSS.size(0); ++i) {
      const Tensor best = std::get<1>(values[i].topk(moe.router.num_selected_patches));
      for (int64_t r = 0; r < moe.router.num_selected_patches; ++r) {
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
                                    /*stride=*/1, /*padding=*/moe.kernel_size / 2));
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
    expect_close(output.pre_logits, features, 1e-10);
    expect_close(output.logits, model->head->forward(features), 1e-10);
  }
}

TEST(WrnPMoE, TrainsByTheGradientOfWhatItComputes) {
  for (const int64_t kernel : {1, 3}) {
    const auto model = doubled(small_wrn(kernel));
    const Tensor images = wide_images(3);
    const auto loss = [&] { return model->forward(images).logits.square().sum(); };
    loss().backward();
    const std::vector<Tensor> of = {model->moe->router->weight,
                                    model->experts->weight,
                                    model->experts->bias,
                                    model->experts->w,
                                    model->experts->b,
                                    model->norm->weight,
                                    model->trunk->parameters().front()};
    const torch::NoGradGuard no_grad;
    for (const Tensor& parameter : of) {
      const Tensor values = parameter.view({-1});
      for (const int64_t at : {values.size(0) / 2, values.size(0) / 3}) {
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
}

TEST(WrnPMoE, RunningStatisticsAreOfTheWholeMap) {
  const auto model = doubled(small_wrn());
  const torch::NoGradGuard no_grad;
  const Tensor images = wide_images(4), map = model->trunk->forward(images);
  const Routing routing = model->moe->router->forward(nn::patches_of(map, 2).flatten(0, 1)).routing;
  const Tensor weights = combine_weights(routing).view({4, 3, 3, 4});
  for (Tensor* tensor : {&model->experts->running_mean, &model->experts->running_var}) {
    tensor->fill_(1.0);
  }
  nn::mixture(*model->experts, nn::patches_of(map, 2).flatten(0, 1), routing, {});
  for (int64_t e = 0; e < 4; ++e) {
    const Tensor gate = weights.select(3, e).repeat_interleave(2, 1).repeat_interleave(2, 2);
    const Tensor seen = (map * gate.unsqueeze(1)).transpose(0, 1).flatten(1);
    expect_close(model->experts->running_mean[e], 0.99 + 0.01 * seen.mean(1), 1e-12);
    expect_close(model->experts->running_var[e], 0.99 + 0.01 * seen.var(1), 1e-12);
  }
  model->eval();
  expect_close(model->forward(images).logits.slice(0, 0, 2),
               model->forward(images.slice(0, 0, 2)).logits, 1e-10);
}

/// Batch normalisation, ReLU and a convolution of a layer by its names in the network's state.
Tensor plain_layer(const TensorMap& state, const std::string& name, Tensor x, int64_t stride) {
  if (state.contains(name + ".norm.weight")) {
    x = normalised(x, state.at(name + ".norm.weight"), state.at(name + ".norm.bias")).relu();
  }
  const std::string conv = state.contains(name + ".conv.weight") ? name + ".conv" : name;
  const Tensor &weight = state.at(conv + ".weight"), &bias = state.at(conv + ".bias");
  const bool wide = weight.size(2) == 3;
  if (wide && stride == 2)
    return torch::conv2d(torch::constant_pad_nd(x, {0, 1, 0, 1}), weight, bias, stride);
  return torch::conv2d(x, weight, bias, stride, /*padding=*/wide ? 1 : 0);
}

TEST(WrnPMoE, TrunkAddsConvolutionsOfTheBlocksInput) {
  WrnPMoEConfig config = small_wrn();
  config.num_blocks = 2;
  WrnPMoE model(config, 3);
  model.to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  uint64_t seed = 30;
  for (Tensor& value : model.trunk->parameters()) {
    if (value.dim() == 1) value.add_(randn(value.sizes().vec(), ++seed));
  }
  const TensorMap state = state_of(*model.trunk);
  const Tensor images = wide_images(3);
  Tensor x = plain_layer(state, "stem", images, 1);
  for (int64_t block = 0; block < 4; ++block) {
    const std::string name = "groups." + std::to_string(block);
    const int64_t stride = block == 2 ? 2 : 1;
    const Tensor beside = block % 2 == 0 ? plain_layer(state, name + ".shortcut", x, stride) : x;
    x = beside +
        plain_layer(state, name + ".second", plain_layer(state, name + ".first", x, stride), 1);
  }
  expect_close(model.trunk->forward(images), plain_layer(state, "groups.4", x, 2), 1e-10);
}

TEST(WrnPMoE, StartsAsKerasDoes) {
  WrnPMoEConfig config;
  config.moe.reset();
  const WrnPMoE model(config, 1);
  const TensorMap state = state_of(*model.trunk);
  const Tensor& wide = state.at("groups.2.second.conv.weight");
  const double bound = std::sqrt(6.0 / (2.0 * 640 * 9));
  EXPECT_LE(wide.abs().max().item<double>(), bound);
  EXPECT_GT(wide.abs().max().item<double>(), 0.999 * bound);
  EXPECT_EQ(state.at("groups.2.second.conv.bias").abs().max().item<double>(), 0);
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
  nn::FeatureMapShape maps{1, 4};
  const nn::Convolution made(
      maps, nn::ConvolutionOptions{.out_channels = 1, .stride = 2, .pads_end_only = true},
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
  const torch::NoGradGuard no_grad;
  for (int64_t e = 0; e < 4; ++e) model->moe->router->weight[e].fill_(e % 2 == 1 ? 9 : 1);
  const Tensor images = wide_images(3);
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
  expect_close(model->forward(images).logits, masked->forward(images).logits, 1e-12);
  WrnPMoE again(parse<WrnPMoEConfig>(Value::from_json(model->config(), "model"), "model"), 9);
  again.to(torch::kDouble);
  load_state(again, state_of(*model), "test");
  again.eval();
  EXPECT_TRUE(at::equal(again.forward(images).logits, model->forward(images).logits));
  EXPECT_THAT(replacement_problem(*model, kReplaceByMean),
              HasSubstr("'mean' cannot replace their outputs"));
}

TEST(WrnPMoE, UseIsOfWhatPatchesAddWithTheirGates) {
  const auto model = doubled(small_wrn(1));
  model->eval();
  const Tensor images = wide_images(3);
  const torch::NoGradGuard no_grad;
  const ExpertStatisticsMeter meter(*model);
  model->forward(images);
  const nn::MapExpertsImpl& experts = *model->experts;
  const Tensor x = nn::patches_of(model->trunk->forward(images), 2).flatten(0, 1);
  const Tensor weights = combine_weights(model->moe->router->forward(x).routing);
  const auto active = [&](const Tensor& map, int64_t e) {
    const Tensor scale = experts.weight[e] * (experts.running_var[e] + 1e-3).rsqrt();
    const Tensor shift = experts.bias[e] - experts.running_mean[e] * scale;
    return (map * scale.unsqueeze(1) + shift.unsqueeze(1)).relu();  // [C, 4]
  };
  for (int64_t e = 0; e < 4; ++e) {
    double sum = 0.0;
    for (int64_t t = 0; t < x.size(0); ++t) {
      const double gate = weights[t][e].item<double>();
      if (gate == 0.0) continue;
      const Tensor map = x[t].view({8, 4});
      const Tensor more = active(map * gate, e) - active(map * 0.0, e);
      sum += experts.w[e].flatten(1).mm(more).norm().item<double>();
    }
    EXPECT_NEAR(meter.statistics().at(0).sums.at({1, 1})[e].item<double>(), sum, 1e-9);
    EXPECT_NEAR(meter.statistics().at(0).sums.at({0, 1})[e].item<double>(), sum, 1e-9);
  }
}

TEST(WrnPMoE, StepsOfPrunedNetworksAreKnownOnTheMetaDevice) {
  WrnPMoEConfig config = small_wrn();
  config.moe->router.kept_experts = {1, 3};
  const MetaKernels kernels;
  const auto shape = build_meta_model(Value::from_json(to_json(config), "model"));
  const Tensor images = torch::empty({2, 3, 24, 24}, torch::device(torch::kMeta));
  const Tensor logits = shape->forward(images).logits;
  EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{2, 3}));
  logits.sum().backward();
}

TEST(WrnPMoE, SaysWhatDoesNotFit) {
  const auto problem = [](const std::function<void(WrnPMoEConfig&)>& change) {
    WrnPMoEConfig config = small_wrn();
    change(config);
    return config_problem(config).text;
  };
  EXPECT_EQ(problem([](WrnPMoEConfig&) {}), "");
  EXPECT_THAT(problem([](WrnPMoEConfig& c) { c.moe->router.num_selected_patches = 10; }),
              HasSubstr("cannot select 10 of 9 patches"));
  EXPECT_THAT(problem([](WrnPMoEConfig& c) { c.moe->patch_size = 4; }),
              HasSubstr("patches of 4 x 4 do not divide the last feature map, 6 x 6; choose 3"));
  EXPECT_THAT(
      problem([](WrnPMoEConfig& c) { c.moe->num_experts = 3; }),
      HasSubstr(
          "8 channels of the last group cannot be divided equally among 3 experts; choose 2"));
  EXPECT_THAT(problem([](WrnPMoEConfig& c) { c.moe->kernel_size = 2; }),
              HasSubstr("has no central pixel"));
}

}  // namespace
}  // namespace moesaic
