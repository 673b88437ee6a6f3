// SPDX-License-Identifier: Apache-2.0
// Settings that V-MoEs share with dense vision transformers of other projects.
#include <torch/csrc/jit/api/module.h>

#include <functional>
#include <map>

#include "base/support.h"
#include "moesaic/export/formats.h"
#include "support/matchers.h"
#include "support/models.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

using Change = std::function<void(VMoEConfig&)>;

VMoEConfig changed(const Change& change) {
  VMoEConfig config = small_vmoe_config();
  change(config);
  return config;
}

/// Registers, and positions of the patches alone.
void add_registers(VMoEConfig& config) {
  config.num_registers = 3;
  config.encoder.position_emb.class_token = false;
}

const std::map<std::string, Change>& changes() {
  static const std::map<std::string, Change> all = {
      {"exact GELU", [](VMoEConfig& c) { c.encoder.activation = "gelu"; }},
      {"epsilon", [](VMoEConfig& c) { c.encoder.layer_norm_eps = 0.1; }},
      {"LayerScale", [](VMoEConfig& c) { c.encoder.layer_scale = 0.5; }},
      {"registers", add_registers},
      {"patches' positions", [](VMoEConfig& c) { c.encoder.position_emb.class_token = false; }},
      {"registers without positions",
       [](VMoEConfig& c) {
         c.num_registers = 2;
         c.encoder.position_emb.name = kNoPosition;
       }},
      {"mean beside a class token",
       [](VMoEConfig& c) {
         c.classifier = kPoolMean;
         c.class_token = true;
       }},
      {"norm after pooling",
       [](VMoEConfig& c) {
         c.classifier = kPoolMean;
         c.norm_after_pooling = true;
       }},
      {"token and mean", [](VMoEConfig& c) { c.classifier = kPoolTokenAndMean; }},
      {"all tokens",
       [](VMoEConfig& c) {
         add_registers(c);
         c.classifier = kPoolTokens;
         c.representation_size = 7;
       }},
      {"attention pooling of patches", [](VMoEConfig& c) {
         c.classifier = kPoolMap;
         c.num_registers = 2;
         c.encoder.activation = "gelu";
         c.encoder.layer_norm_eps = 0.01;
       }}};
  return all;
}

TEST(DenseSettings, TheScriptAndTheConfigurationAreOfTheSameNetwork) {
  for (const auto& [name, change] : changes()) {
    SCOPED_TRACE(name);
    const auto model = small_vmoe(changed(change));
    model->eval();
    const at::Tensor wanted = run(*model, small_images(3)).logits;
    const torch::NoGradGuard no_grad;
    torch::jit::Module script = to_torchscript(*model);
    expect_close(script.forward({small_images(3)}).toTensor(), wanted, 1e-5);
    EXPECT_TRUE(at::equal(run(*testing::rebuilt(*model), small_images(3)).logits, wanted));
    // Each setting changes the outputs of equal parameters, if there are no others.
    if (state_of(*model).size() != state_of(VMoE(small_vmoe_config(), 1)).size()) continue;
    EXPECT_FALSE(at::equal(run(*small_vmoe(), small_images(3)).logits, wanted));
  }
}

TEST(DenseSettings, EveryParameterGetsAGradient) {
  for (const auto& [name, change] : changes()) {
    const auto model = small_vmoe(changed(change));
    model->forward(small_images(3)).logits.square().sum().backward();
    for (const auto& item : model->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << name << ": " << item.key();
    }
  }
}

TEST(DenseSettings, TokensAreCountedWithTheirPrefix) {
  const VMoE model(changed(add_registers), 1);
  EXPECT_EQ(model.tokens_per_image(), 1 + 3 + 16);
  EXPECT_EQ(model.patch_tokens()->num_prefix_tokens, 4);
  EXPECT_EQ(model.position_embedding.size(1), 16);
  EXPECT_EQ(model.registers.sizes(), (std::vector<int64_t>{1, 3, 12}));
  EXPECT_EQ(VMoE(small_vmoe_config(), 1).position_embedding.size(1), 17);
}

TEST(DenseSettings, LayerScaleOfZeroLeavesTheTokensAsTheyAre) {
  VMoEConfig config = changed([](VMoEConfig& c) { c.encoder.layer_scale = 0.0; });
  config.num_classes = 0;
  const auto model = std::make_shared<VMoE>(config, 1);
  const at::Tensor wanted = model->norm->forward(model->cls + model->position_embedding[0][0]);
  expect_close(run(*model, small_images(2)).logits, wanted[0].detach().expand({2, 12}), 1e-6);
}

TEST(DenseSettings, SettingsThatExcludeEachOtherAreRefused) {
  const auto refused = [](const Change& change) {
    return test::usage_of([&] { VMoE(changed(change), 1); });
  };
  EXPECT_THAT(refused([](VMoEConfig& c) { c.num_registers = 1; }),
              HasSubstr("num_registers needs encoder.position_emb.class_token false"));
  EXPECT_THAT(refused([](VMoEConfig& c) { c.class_token = false; }),
              HasSubstr("classifier 'token' needs a class_token; choose 'gap'"));
  EXPECT_THAT(refused([](VMoEConfig& c) {
                c.classifier = kPoolTokenAndMean;
                c.norm_after_pooling = true;
              }),
              HasSubstr("norm_after_pooling is for a classifier of one token"));
}

}  // namespace
}  // namespace moesaic
