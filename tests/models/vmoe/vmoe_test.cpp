// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/vmoe/vmoe.h"

#include <cmath>

#include "base/support.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/mlp_experts.h"
#include "support/matchers.h"
#include "support/models.h"
#include "support/small_vmoe.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

VMoEConfig small_config() {
  VMoEConfig config = small_vmoe_config();
  config.patch_size = 4;
  config.num_classes = 3;
  config.encoder.num_layers = 3;
  config.encoder.moe.layers = {0, 2};
  config.encoder.moe.num_experts = 4;
  return config;
}

TEST(VMoE, GivesLogitsAndARoutingForEachLayer) {
  VMoE model(small_config(), 1);
  const ModelOutput out = model.forward(torch::zeros({2, 1, 8, 8}));
  EXPECT_EQ(out.logits.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(out.pre_logits.sizes(), (std::vector<int64_t>{2, 12}));
  ASSERT_EQ(out.routings.size(), 2U);
  EXPECT_EQ(out.routings[1].block, 2);
  EXPECT_EQ(out.routings[1].logits_TE.sizes(), (std::vector<int64_t>{2 * 5, 4}));
}

TEST(VMoE, NoiseIsDrawnForTrainingOnly) {
  VMoEConfig config = small_config();
  config.encoder.moe.router.noise_std = 4.0;
  VMoE model(config, 1);
  const at::Tensor images = small_images(6, 4);
  const ModelOutput quiet = model.forward(images);
  EXPECT_TRUE(quiet.routings[0].noisy_logits_TE.is_same(quiet.routings[0].logits_TE));
  EXPECT_EQ(quiet.routings[0].noise_std, 0.0);
  const ModelOutput a = model.forward(images, nn::make_generator(2));
  const ModelOutput b = model.forward(images, nn::make_generator(2));
  EXPECT_TRUE(torch::equal(a.routings[1].noisy_logits_TE, b.routings[1].noisy_logits_TE));
  EXPECT_FALSE(torch::equal(a.routings[1].noisy_logits_TE, a.routings[1].logits_TE));
  EXPECT_EQ(a.routings[1].noise_std, 1.0);  // 4 / E
}

TEST(VMoE, ItsExpertsCanChooseTheTokens) {
  VMoEConfig config = small_config();
  config.encoder.moe.router.kind = RoutingKind::expert_choice;
  config.encoder.moe.router.l = 2;
  config.encoder.moe.group_size = 5;  // the tokens of an image
  VMoE model(config, 1);
  const ModelOutput out = model.forward(small_images(3, 4));
  EXPECT_EQ(out.routings[0].routing.max_rows(), 3 * 2 * 4);
  const double d = 12, m = 20;
  config.encoder.moe.router.l = 4;
  EXPECT_DOUBLE_EQ(VMoE(config, 1).flops_per_image() - model.flops_per_image(),
                   2 * (2 * 4) * 2 * 2 * d * m);  // two layers, two more rows of each expert
  testing::rebuilt(model);
}

TEST(VMoE, ItsConfigurationRebuildsItPrunedOrNot) {
  VMoE model(small_config(), 1);
  model.moe_blocks()[1].layer->keep_experts({1, 3});
  model.reset_head(7);
  testing::rebuilt(model);
}

TEST(VMoE, AnImageDoesNotDependOnItsBatchWhenNothingIsDropped) {
  VMoE model(small_config(), 1);
  model.head->weight.mutable_data_ptr<float>()[0] = 1.0F;
  const torch::NoGradGuard no_grad;
  const at::Tensor images = small_images(5, 2);
  const at::Tensor all = model.forward(images).pre_logits;
  expect_close(model.forward(images.slice(0, 3, 4)).pre_logits[0], all[3], 1e-6);
}

TEST(VMoE, EveryParameterGetsAGradient) {
  VMoE model(small_config(), 1);
  torch::NoGradGuard no_grad;
  model.head->weight.copy_(randn({3, 12}, 3, torch::kFloat));
  torch::AutoGradMode grad(true);
  model.forward(small_images(6, 4)).logits.square().sum().backward();
  for (const auto& item : model.named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().abs().sum().item<double>(), 0.0) << item.key();
  }
}

TEST(VMoE, CountsTheMatrixProducts) {
  VMoEConfig config = small_config();
  config.encoder.num_layers = 1;
  config.encoder.moe.layers = {0};
  const VMoE model(config, 1);
  const double T = 5, d = 12, m = 20;
  const double fixed = 4 * 16 * d + d * 3 + T * d * 3 * d + 2 * T * T * d + T * d * d + T * d * 4;
  EXPECT_DOUBLE_EQ(model.flops_per_image(), 2 * (fixed + 2 * T * 2 * d * m));
  EXPECT_DOUBLE_EQ(model.flops_per_image({{0, 0.5}}), 2 * (fixed + 0.5 * T * 2 * d * m));
}

TEST(VMoE, MeansOfTokensCanTakeTheClassTokensPlace) {
  VMoEConfig config = small_config();
  config.classifier = "gap";
  VMoE model(config, 1);
  EXPECT_EQ(model.named_parameters().find("cls"), nullptr);
  EXPECT_EQ(model.forward(torch::zeros({2, 1, 8, 8})).routings[0].logits_TE.size(0), 8);
}

TEST(VMoE, AFreshHeadHasItsBias) {
  VMoEConfig config = small_config();
  config.head_bias_init = -2.5;
  config.representation_size = 7;
  VMoE model(config, 1);
  EXPECT_TRUE(torch::equal(model.head->bias, torch::full({3}, -2.5)));
  model.reset_head(4);
  EXPECT_TRUE(torch::equal(model.head->bias, torch::full({4}, -2.5)));
  EXPECT_EQ(model.head->weight.sizes(), (std::vector<int64_t>{4, 7}));
  EXPECT_EQ(model.forward(torch::zeros({2, 1, 8, 8})).logits.sizes(), (std::vector<int64_t>{2, 4}));
}

TEST(VMoE, AFreshHeadMayStartAtTheLogarithmOfItsClasses) {
  VMoEConfig config = small_config();
  config.head_bias_init = std::nullopt;
  VMoE model(config, 1);
  EXPECT_TRUE(torch::allclose(model.head->bias, torch::full({3}, -std::log(3.0))));
  EXPECT_TRUE(model.config()["head_bias_init"].is_null());
  model.reset_head(40);
  EXPECT_TRUE(torch::allclose(model.head->bias, torch::full({40}, -std::log(40.0))));
}

// Flax's defaults, and for experts what split_rngs says.
TEST(VMoE, StartsAsTheReference) {
  VMoEConfig config = small_config();
  config.hidden_size = 96;
  config.representation_size = 200;
  config.encoder.moe.split_rngs = false;
  VMoE model(config, 1);
  EXPECT_NEAR(model.pre_logits->weight.std().item<double>(), 1 / std::sqrt(96), 2e-3);
  EXPECT_LE(model.pre_logits->weight.abs().max().item<double>(), 2.001 / 0.8796 / std::sqrt(96));
  EXPECT_EQ(model.pre_logits->bias.abs().max().item<double>(), 0.0);
  const double pixels = static_cast<double>(model.embedding->weight[0].numel());
  EXPECT_LE(model.embedding->weight.abs().max().item<double>(), 2.001 / 0.8796 / std::sqrt(pixels));
  const auto experts = [](const VMoE& of) {
    return of.moe_blocks()[0].layer->experts->as<nn::MlpExperts>();
  };
  EXPECT_TRUE(torch::equal(experts(model)->w1[0], experts(model)->w1[1]));
  config.encoder.moe.split_rngs = true;
  const VMoE split(config, 1);
  EXPECT_FALSE(torch::equal(experts(split)->w1[0], experts(split)->w1[1]));
}

TEST(VMoE, HasACapacityOfItsOwnInEvaluation) {
  VMoEConfig config = small_config();
  auto& dispatcher = config.encoder.moe.router.capacity;
  dispatcher.factor = 0.5;
  dispatcher.multiple_of = 1;
  VMoEConfig wide = config, both = config;
  wide.encoder.moe.router.capacity.factor = 4.0;
  both.encoder.moe.router.capacity.evaluation_factor = 4.0;
  VMoE narrow_model(config, 1), wide_model(wide, 1), model(both, 1);
  const at::Tensor images = small_images(6, 2);
  const auto pre_logits = [&](VMoE& of, bool train) {
    of.train(train);
    return of.forward(images).pre_logits;
  };
  EXPECT_TRUE(torch::equal(pre_logits(model, true), pre_logits(narrow_model, true)));
  EXPECT_TRUE(torch::equal(pre_logits(model, false), pre_logits(wide_model, false)));
  EXPECT_FALSE(torch::equal(pre_logits(model, false), pre_logits(model, true)));
  both.encoder.moe.router.capacity.evaluation_factor = 0.0;
  VMoE unlimited(both, 1);
  EXPECT_TRUE(torch::equal(pre_logits(unlimited, false), pre_logits(wide_model, false)));
}

TEST(VMoE, DropsInTrainingOnlyAndFromItsGeneratorAlone) {
  for (const char* rate : {"encoder", "attention", "moe"}) {
    VMoEConfig config = small_config();
    if (rate == std::string("encoder")) config.encoder.dropout_rate = 0.3;
    if (rate == std::string("attention")) config.encoder.attention_dropout_rate = 0.3;
    if (rate == std::string("moe")) config.encoder.moe.dropout_rate = 0.3;
    VMoE model(config, 1);
    const at::Tensor images = small_images(4, 2);
    const at::Tensor plain = model.forward(images).pre_logits;
    const at::Tensor dropped = model.forward(images, nn::make_generator(3)).pre_logits;
    EXPECT_FALSE(torch::allclose(dropped, plain)) << rate;
    EXPECT_TRUE(torch::equal(model.forward(images, nn::make_generator(3)).pre_logits, dropped));
    model.eval();
    EXPECT_TRUE(torch::equal(model.forward(images, nn::make_generator(3)).pre_logits, plain));
  }
}

// One image many times, of which one block's attention alone changes the output.
TEST(VMoE, StochasticDepthGrowsLinearlyFromTheFirstBlock) {
  constexpr int64_t kImages = 2000;
  for (const int64_t block : {0, 1, 2}) {
    VMoEConfig config = small_config();
    config.encoder.moe.layers = {};
    config.encoder.layer_scale = 0.0;
    config.encoder.drop_path_rate = 0.6;
    VMoE model(config, 1);
    const torch::NoGradGuard no_grad;
    const at::Tensor images = small_images(1, 2).repeat({kImages, 1, 1, 1});
    const at::Tensor without = model.forward(images).pre_logits;
    model.named_parameters()["blocks." + std::to_string(block) + ".scale1"].fill_(1.0);
    const at::Tensor with = model.forward(images, nn::make_generator(3)).pre_logits;
    const at::Tensor dropped = (with - without).abs().amax(1).lt(1e-6);
    const double rate = dropped.to(torch::kDouble).mean().item<double>();
    EXPECT_NEAR(rate, 0.3 * static_cast<double>(block), 0.05) << block;
  }
}

// The reference hands the encoder's rate on to the experts, unless they have their own.
TEST(VMoE, ExpertsDropAtTheEncodersRateUnlessTheyHaveTheirOwn) {
  VMoEConfig config = small_config();
  config.encoder.dropout_rate = 0.25;
  const auto rate = [&] {
    const VMoE model(config, 1);
    return model.moe_blocks()[0].layer->experts->as<nn::MlpExperts>()->options().dropout;
  };
  EXPECT_EQ(rate(), 0.25);
  config.encoder.moe.dropout_rate = 0.0;
  EXPECT_EQ(rate(), 0.0);
}

TEST(VMoE, TellsTheLossesThatItsConfigurationWeighs) {
  VMoEConfig config = small_config();
  EXPECT_TRUE(VMoE(config, 1).aux_losses().empty());
  config.encoder.moe.router.load_loss_weight = 0.25;
  EXPECT_EQ(VMoE(config, 1).aux_losses(), (std::map<std::string, double>{{"load", 0.25}}));
}

TEST(VMoE, RefusesImagesOfAnotherShape) {
  VMoE model(small_config(), 1);
  EXPECT_THROW(model.forward(torch::zeros({2, 1, 8, 9})), Error);
  EXPECT_THROW(model.forward(torch::zeros({1, 8, 8})), Error);
}

TEST(VMoE, RefusesABadConfigurationWithTheReason) {
  for (const auto& [change, reason] :
       {std::pair{"patch_size=5", "does not divide image_size"},
        {"encoder.num_heads=7", "does not divide hidden_size"},
        {"encoder.moe.layers=[4]", "names block 4"},
        {"encoder.moe.router.num_selected_experts=9", "there are 8 experts"},
        {"encoder.mlp_dims=9", "did you mean 'mlp_dim'"},
        {"encoder.moe.router.num_selected_tokens=3", "is for the router"},
        {"encoder.moe.router.gate=softmax_tokens", "is for the router"},
        {R"(encoder.moe.router={"name": "threshold", "gate": "softmax_tokens"})",
         "has no gates; set it to 'one'"},
        {"encoder.moe.router.name=NoisyTopItemsPerExpertRouter",
         "needs either encoder.moe.router.dispatcher.capacity_factor, or "
         "encoder.moe.router.num_selected_tokens with encoder.moe.group_size; neither is given"},
        {"encoder.moe.router.name=token-choice", "did you mean 'token_choice'?"},
        {R"(encoder.moe.router={"name": "NoisyTopItemsPerExpertRouter",
                                "num_selected_tokens": 2, "gate": "logit"})",
         "is for the router"},
        {R"(encoder.moe.router={"name": "NoisyTopItemsPerExpertRouter", "num_selected_tokens": 2})",
         "set encoder.moe.group_size"},
        {"name=vmo", "vmoe"}}) {
    Document document = Document::from_text(R"({"name": "vmoe"})", "model.json");
    document.set(change);
    EXPECT_THAT(test::usage_of([&] { build_model(document.root(), 0); }), HasSubstr(reason))
        << change;
  }
}

at::Tensor position_waves(int64_t height, int64_t width, int64_t d, double temperature) {
  at::Tensor out = torch::zeros({1, height * width, d}, torch::kDouble);
  const int64_t waves = d / 4;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t i = 0; i < waves; ++i) {
        const double omega =
            1.0 / std::pow(temperature, static_cast<double>(i) / static_cast<double>(waves - 1));
        const double parts[] = {
            std::sin(omega * static_cast<double>(x)), std::cos(omega * static_cast<double>(x)),
            std::sin(omega * static_cast<double>(y)), std::cos(omega * static_cast<double>(y))};
        for (int64_t part = 0; part < 4; ++part) {
          out[0][y * width + x][part * waves + i] = parts[part];
        }
      }
    }
  }
  return out;
}

TEST(VMoE, PositionsCanBeWavesOfRowAndColumn) {
  for (const char* classifier : {"token", "gap"}) {
    VMoEConfig config = small_config();
    config.image_size = {12, 8};
    config.patch_size = {2, 4};
    config.classifier = classifier;
    config.encoder.position_emb.temperature = 50.0;
    VMoE learned(config, 1);
    config.encoder.position_emb.name = kSinCos2d;
    VMoE waves(config, 1);
    EXPECT_FALSE(waves.position_embedding.defined());
    const torch::NoGradGuard no_grad;
    for (const auto& item : waves.named_parameters()) {
      item.value().copy_(learned.named_parameters()[item.key()]);
    }
    learned.position_embedding.zero_().slice(1, classifier == std::string("token") ? 1 : 0) +=
        position_waves(6, 2, 12, 50.0);
    const at::Tensor images = randn({3, 1, 12, 8}, 4, torch::kFloat);
    expect_close(waves.forward(images).pre_logits, learned.forward(images).pre_logits, 5e-6);
  }
}

TEST(VMoE, WavesAreNoPartOfItsState) {
  VMoEConfig config = small_config();
  config.encoder.position_emb.name = kNoPosition;
  const TensorMap without = state_of(VMoE(config, 1));
  config.encoder.position_emb.name = kSinCos2d;
  const TensorMap with = state_of(VMoE(config, 1));
  EXPECT_EQ(with.size(), without.size());
  for (const auto& [name, tensor] : without) EXPECT_TRUE(with.contains(name)) << name;
}

TEST(VMoE, WithoutPositionsPatchesAreASet) {
  VMoEConfig config = small_config();
  config.encoder.position_emb.name = kNoPosition;
  config.classifier = "gap";
  VMoE model(config, 1);
  const torch::NoGradGuard no_grad;
  const at::Tensor images = small_images(2, 4);
  expect_close(model.forward(images.roll(4, 3)).pre_logits, model.forward(images).pre_logits, 1e-6);
}

/// Patches row by row, of any shape.
TEST(VMoE, PatchesNeedNotBeSquare) {
  VMoEConfig config = small_config();
  config.image_size = {6, 8};
  config.patch_size = {3, 4};
  config.encoder.num_layers = 1;
  config.encoder.moe.layers = {};
  VMoE model(config, 1);
  EXPECT_EQ(model.input_shape(), (std::vector<int64_t>{1, 6, 8}));
  EXPECT_EQ(model.position_embedding.size(1), 2 * 2 + 1);
  testing::rebuilt(model);
  const at::Tensor images = randn({2, 1, 6, 8}, 4, torch::kFloat);
  const at::Tensor found = model.embedding->forward(images).flatten(2).transpose(1, 2);
  for (int64_t patch = 0; patch < 4; ++patch) {
    const at::Tensor cut = images.slice(2, patch / 2 * 3, patch / 2 * 3 + 3)
                               .slice(3, patch % 2 * 4, patch % 2 * 4 + 4);
    const at::Tensor wanted = cut.flatten(1).matmul(model.embedding->weight.flatten(1).t());
    expect_close(found.select(1, patch), wanted, 1e-5);
  }
  EXPECT_THROW(model.forward(torch::zeros({2, 1, 8, 6})), Error);
}

TEST(VMoE, WithoutAHeadItGivesItsRepresentation) {
  VMoEConfig config = small_config();
  config.num_classes = 0;
  VMoE model(config, 1);
  const ModelOutput out = model.forward(small_images(2, 4));
  EXPECT_TRUE(torch::equal(out.logits, out.pre_logits));
  testing::rebuilt(model);
  model.reset_head(3);
  EXPECT_EQ(model.forward(torch::zeros({2, 1, 8, 8})).logits.size(1), 3);
  testing::rebuilt(model);
}

TEST(VMoE, NoiseMayBeDrawnInEvaluationToo) {
  VMoEConfig config = small_config();
  config.encoder.moe.router.noise_std = 4.0;
  config.encoder.moe.router.noise = kNoiseAlways;
  VMoE model(config, 1);
  model.eval();
  const at::Tensor images = small_images(6, 4);
  const ModelOutput a = model.forward(images), b = model.forward(images);
  std::vector<at::Tensor> noises;
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(a.routings[i].noise_std, 1.0);
    EXPECT_TRUE(torch::equal(a.routings[i].noisy_logits_TE, b.routings[i].noisy_logits_TE));
    noises.push_back(a.routings[i].noisy_logits_TE - a.routings[i].logits_TE);
    EXPECT_NEAR(noises[i].std().item<double>(), 1.0, 0.25);
  }
  EXPECT_FALSE(torch::allclose(noises[0], noises[1], 0.0, 0.1));
  testing::rebuilt(model);
}

TEST(VMoE, ARouterMayDrawNoNoiseAtAll) {
  VMoEConfig config = small_config();
  config.encoder.moe.router.noise_std = 4.0;
  config.encoder.moe.router.noise = kNoiseNever;
  VMoE model(config, 1);
  const at::Tensor images = small_images(6, 4);
  const ModelOutput out = model.forward(images, nn::make_generator(2));
  EXPECT_TRUE(out.routings[1].noisy_logits_TE.is_same(out.routings[1].logits_TE));
  EXPECT_EQ(out.routings[1].noise_std, 0.0);  // and so there is no load loss
}

TEST(VMoE, ItsTokensCanGoToEveryExpertAboveAThreshold) {
  VMoEConfig config = small_config();
  config.encoder.moe.router.kind = RoutingKind::threshold;
  config.encoder.moe.router.threshold = 0.1;
  config.encoder.moe.router.gate = Gate::one;
  ASSERT_EQ(config_problem(config).text, "");
  VMoE model(config, 1);
  const ModelOutput out = model.forward(small_images(3, 4));
  const RoutingRecord& record = out.routings[0];
  EXPECT_TRUE(
      torch::equal(combine_weights(record.routing), record.logits_TE.ge(0.1).to(torch::kFloat)));
  testing::rebuilt(model);
  config.encoder.moe.router.capacity.rows = 3;
  EXPECT_NE(config_problem(config).text, "");
}

TEST(VMoE, ACapacityOfSoManyRows) {
  VMoEConfig config = small_config();
  config.encoder.moe.router.capacity.rows = 3;
  config.encoder.moe.group_size = 10;
  VMoE model(config, 1);
  const ModelOutput out = model.forward(small_images(4, 4));
  const at::Tensor rows = out.routings[0].routing.offsets.diff();
  EXPECT_LE(rows.max().item<int64_t>(), 2 * 3);  // of two groups
  config.encoder.moe.router.kind = RoutingKind::expert_choice;
  const ModelOutput chosen = VMoE(config, 1).forward(small_images(4, 4));
  EXPECT_EQ(chosen.routings[0].routing.max_rows(), 2 * 3 * 4);
}

}  // namespace
}  // namespace moesaic
