// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/vmoe/vmoe.h"

#include "base/support.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/models/registry.h"
#include "support/matchers.h"
#include "support/reference_files.h"
#include "support/small_vmoe.h"

namespace moesaic::testing {
namespace {

TEST(VitZoom, EqualsTheReference) {
  NEEDS_REFERENCE();
  const TensorMap golden = read_tensors(reference_path("units/golden.safetensors"));
  int64_t cases = 0;
  for (const auto& [name, result] : golden) {
    if (!name.starts_with("zoom/") || !name.ends_with("/result")) continue;
    ++cases;
    const at::Tensor source = golden.at(name.substr(0, name.rfind('/')) + "/source");
    const at::Tensor found = vit_zoom(source, result.size(1));
    EXPECT_EQ(found.sizes(), result.sizes()) << name;
    EXPECT_LE((found - result).abs().max().item<float>(), 1.2e-7) << name;
  }
  EXPECT_GE(cases, 14);
}

TEST(VitZoom, InterpolatesWithAlignedCorners) {
  const at::Tensor source = torch::tensor({7.f, 0.f, 2.f, 4.f, 6.f}).view({1, 5, 1});
  EXPECT_TRUE(torch::equal(vit_zoom(source, 10).flatten(),
                           torch::tensor({7.f, 0.f, 1.f, 2.f, 2.f, 3.f, 4.f, 4.f, 5.f, 6.f})));
  EXPECT_TRUE(torch::equal(vit_zoom(source, 4).flatten(), torch::tensor({0.f, 2.f, 4.f, 6.f})));
  EXPECT_TRUE(torch::equal(vit_zoom(source, 5), source));
  EXPECT_TRUE(torch::equal(vit_zoom(source, 1).flatten(), torch::tensor({0.f})));
}

/// 25 * (7 / 25.) is 7.000000000000001: past the last row, which the reference leaves empty.
TEST(VitZoom, KeepsTheReferencesEmptyRows) {
  const at::Tensor found = vit_zoom(torch::ones({1, 64, 1}), 26 * 26).view({26, 26});
  EXPECT_EQ(found[25].sum().item<float>(), 0.0f);
  EXPECT_EQ(found.select(1, 25).sum().item<float>(), 0.0f);
  EXPECT_EQ(found.sum().item<float>(), 25.0f * 25.0f);
}

TEST(VitZoom, RefusesWhatIsNoGrid) {
  const at::Tensor tokens = torch::ones({1, 5, 3});
  EXPECT_THAT(test::usage_of([&] { vit_zoom(tokens, 7); }),
              HasSubstr("7 tokens do not form a square grid"));
  const at::Tensor long_ones = torch::ones({1, 7, 3});
  EXPECT_TRUE(torch::equal(vit_zoom(long_ones, 7), long_ones));
  EXPECT_THAT(test::usage_of([&] { vit_zoom(torch::ones({1, 7, 3}), 4); }), HasSubstr("7 tokens"));
  EXPECT_THAT(test::usage_of([&] {
                vit_zoom(torch::ones({1, 4, 3}), 10);
              }),
              HasSubstr("4 tokens have no class token, 10 have one"));
}

/// Of 16 tokens and a class token for each image.
VMoEConfig source_config() {
  VMoEConfig config = small_vmoe_config();
  config.representation_size = 9;
  return config;
}

TEST(VMoEFineTuning, BeginsWithOtherImagesMembersAndClasses) {
  VMoEConfig other = source_config();
  other.image_size = 12;
  other.num_classes = 9;
  other.encoder.moe.ensemble_size = 2;
  other.encoder.moe.router.k = 1;
  other.name = kE3;
  VMoE source(source_config(), 1), target(other, 2);
  const TensorMap from = state_of(source), to = state_of(target);
  target.initialise_from(source, from, /*new_head=*/true, "source");
  for (const char* name : {"blocks.1.moe.router.weight", "blocks.0.attention.qkv.weight",
                           "pre_logits.weight", "blocks.3.moe.experts.w1"}) {
    EXPECT_TRUE(torch::equal(to.at(name), from.at(name))) << name;
  }
  EXPECT_TRUE(
      torch::equal(to.at("position_embedding"), vit_zoom(from.at("position_embedding"), 37)));
  EXPECT_EQ(to.at("head.weight").abs().sum().item<float>(), 0.0f);
}

TEST(VMoEFineTuning, LeavesAnotherLayerBeforeTheHeadBehind) {
  VMoEConfig other = source_config();
  other.representation_size = 0;
  VMoE source(source_config(), 1), target(other, 2);
  target.initialise_from(source, state_of(source), /*new_head=*/true, "source");
  EXPECT_TRUE(torch::equal(target.embedding->weight, source.embedding->weight));
  other.representation_size = 7;
  VMoE wider(other, 2), fresh(other, 2);
  wider.initialise_from(source, state_of(source), /*new_head=*/true, "source");
  EXPECT_TRUE(torch::equal(wider.pre_logits->weight, fresh.pre_logits->weight));
}

TEST(VMoEFineTuning, GivesAnUnprunedNetworkZerosForExpertsThatPruningRemoved) {
  VMoEConfig pruned = source_config(), other = source_config();
  pruned.encoder.moe.kept_experts["3"] = {1, 4};
  other.image_size = 12;
  VMoE source(pruned, 1), target(other, 2);
  target.initialise_from(source, state_of(source), /*new_head=*/false, "source");
  const at::Tensor w1 = state_of(target).at("blocks.3.moe.experts.w1");
  const at::Tensor held = state_of(source).at("blocks.3.moe.experts.w1");
  EXPECT_TRUE(torch::equal(w1.index({torch::tensor({1, 4})}), held));
  EXPECT_EQ(w1.index({torch::tensor({0, 2, 3, 5})}).abs().sum().item<float>(), 0.0f);
}

TEST(VMoEFineTuning, TakesMeanOutputsOfPrunedExpertsToANetworkWithThem) {
  VMoEConfig pruned = source_config(), whole = source_config();
  pruned.encoder.moe.kept_experts["3"] = {1, 4};
  pruned.encoder.moe.mean_replacement = true;
  VMoE source(pruned, 1);
  pruned.image_size = whole.image_size = 12;
  VMoE target(pruned, 2), other(whole, 2);
  target.initialise_from(source, state_of(source), /*new_head=*/false, "source");
  for (const char* name : {"blocks.3.moe.experts.w1", "blocks.3.moe.stand_in"}) {
    EXPECT_TRUE(torch::equal(state_of(target).at(name), state_of(source).at(name))) << name;
  }
  EXPECT_THAT(test::usage_of([&] {
                other.initialise_from(source, state_of(source), /*new_head=*/false, "source");
              }),
              HasSubstr("source: the network cannot store mean outputs"));
}

/// Both for a network and for its shape alone, as a plan of a run has it.
TEST(VMoEFineTuning, RefusesWhatDoesNotFitBeforeAnythingChanges) {
  VMoE source(source_config(), 1);
  const auto refused = [&](VMoEConfig config, const TensorMap& values) {
    config.image_size = 12;
    VMoE target(config, 2);
    const TensorMap before = state_of(VMoE(config, 2));
    const auto initialise = [&](Model& model) {
      return test::failure_of(
          [&] { model.initialise_from(source, values, /*new_head=*/false, "source"); });
    };
    const std::string message = initialise(target);
    for (const auto& [name, value] : state_of(target)) {
      EXPECT_TRUE(torch::equal(value, before.at(name))) << name;
    }
    EXPECT_EQ(initialise(*build_meta_model(Value::from_json(to_json(config), "model"))), message);
    return message;
  };
  VMoEConfig narrow = source_config(), mean = source_config();
  narrow.encoder.mlp_dim = 16;
  mean.classifier = "gap";
  EXPECT_EQ(refused(narrow, state_of(source)),
            "source: 'blocks.0.mlp.fc1.bias' is [20], the network's is [16]: the shapes differ");
  EXPECT_EQ(refused(mean, state_of(source)), "source: 'cls' has no place in the network");
  TensorMap values = state_of(source);
  values["position_embedding"] = at::ones({1, 7, 12});
  EXPECT_THAT(refused(source_config(), values), HasSubstr("7 tokens do not form a square grid"));
  values.erase("norm.bias");
  EXPECT_EQ(refused(source_config(), values), "source: 'norm.bias' is missing");
}

}  // namespace
}  // namespace moesaic::testing
