// SPDX-License-Identifier: Apache-2.0
#include "import/vmoe/reference.h"

#include <fmt/format.h>

#include "import/vmoe/fixture.h"
#include "moesaic/config/document.h"
#include "moesaic/config/schema.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

VMoEModelConfig read_model(const std::string& text) {
  return vmoe_model_config(Document::from_text(text, "config.json").root());
}

VMoEConfig parsed_model(const std::string& text) {
  return parse<VMoEConfig>(read_model(text).model, "model");
}

std::string refused_model(const std::string& text) {
  return test::usage_of([&] { parsed_model(text); });
}

const char* const kEnsembleText = R"({
  "name": "VisionTransformerMoeEnsemble", "num_classes": 7, "patch_size": [8, 8],
  "image_size": [32, 32], "hidden_size": 12, "representation_size": 9, "head_bias_init": -10,
  "classifier": "token", "deterministic": null, "head_kernel_zero_init": true,
  "encoder": {
    "num_layers": 4, "num_heads": 3, "mlp_dim": 20, "dropout_rate": 0.1,
    "attention_dropout_rate": 0.0, "attention_qk_norm": false, "position_emb": {"name": "learned"},
    "moe": {
      "layers": [1, 3], "num_experts": 8, "ensemble_size": 2, "group_size": 34,
      "split_rngs": false, "dropout_rate": null,
      "router": {
        "importance_loss_weight": 0.005, "deterministic": false,
        "dispatcher": {"name": "indices", "capacity_factor": 1.5, "capacity_multiple_of": null,
                       "capacity_ceil_or_round": "round", "batch_priority": true,
                       "bfloat16": true, "partition_spec": [["expert", "replica"]]}}}}})";

TEST(VMoEModelConfig, TheReferencesNamesAndDefaults) {
  const VMoEConfig config = parsed_model(kEnsembleText);
  EXPECT_EQ(config.name, kE3);
  EXPECT_EQ(config.num_classes, 7);
  EXPECT_EQ(config.patch_size, 8);
  EXPECT_EQ(config.image_size, 32);
  EXPECT_EQ(config.representation_size, 9);
  EXPECT_EQ(config.head_bias_init, -10.0);
  EXPECT_EQ(config.encoder.dropout_rate, 0.1);
  const VMoEMoeConfig& moe = config.encoder.moe;
  EXPECT_EQ(moe.ensemble_size, 2);
  EXPECT_FALSE(moe.dropout_rate);
  EXPECT_EQ(moe.router.k, 1);  // the reference's default, not ours
  EXPECT_EQ(moe.router.noise_std, 1.0);
  EXPECT_EQ(moe.router.importance_loss_weight, 0.005);
  EXPECT_EQ(moe.router.load_loss_weight, 1.0);
  EXPECT_EQ(moe.router.capacity.multiple_of, 1);
  EXPECT_EQ(moe.router.capacity.rounding, CapacityRounding::round);
  EXPECT_TRUE(moe.router.capacity.batch_priority);
  EXPECT_TRUE(moe.router.bfloat16);
  EXPECT_THAT(
      read_model(kEnsembleText).unused,
      AllOf(Contains("deterministic"), Contains("encoder.moe.router.dispatcher.partition_spec")));
}

TEST(VMoEModelConfig, TellsWhetherExpertsShareTheirStart) {
  const auto splits = [](const std::string& setting) {
    return parsed_model(
               R"({"name": "VisionTransformerMoe", "image_size": 28, "encoder": {"moe": {)" +
               setting + "}}}")
        .encoder.moe.split_rngs;
  };
  EXPECT_FALSE(splits(""));  // the reference's default
  EXPECT_FALSE(splits(R"("split_rngs": false)"));
  EXPECT_TRUE(splits(R"("split_rngs": true)"));
  EXPECT_TRUE(splits(R"("split_rngs": ["dropout", "params"])"));
  EXPECT_FALSE(splits(R"("split_rngs": ["dropout"])"));
}

TEST(VMoEModelConfig, ARouterWhoseExpertsChooseHasNoLosses) {
  const auto router = parsed_model(R"({"name": "VisionTransformerMoe", "encoder": {"moe": {"router":
      {"name": "NoisyTopItemsPerExpertRouter", "dispatcher": {"capacity_factor": 1}}}},
      "image_size": 28})")
                          .encoder.moe.router;
  EXPECT_EQ(router.noise_std, 1.0);
  EXPECT_EQ(router.importance_loss_weight, 0.0);
  EXPECT_EQ(router.load_loss_weight, 0.0);
}

TEST(VMoEModelConfig, OtherSpellings) {
  EXPECT_EQ(parsed_model(R"({"name": "vit_moe.VisionTransformerMoe", "patches": {"size": [4, 4]},
                       "image_size": 8, "classes": 3})")
                .patch_size,
            4);
  EXPECT_EQ(parsed_model(R"({"name": "VisionTransformer", "patches": {"size": 4}, "image_size": 8,
                       "transformer": {"num_layers": 2}, "representation_size": null})")
                .encoder.num_layers,
            2);
  const VMoEConfig native = parsed_model(R"({"name": "vmoe", "image_size": 8, "patch_size": 4})");
  EXPECT_EQ(native.encoder.moe.router.k, 2);
  EXPECT_EQ(native.encoder.moe.router.noise_std, 0.0);
}

TEST(VMoEModelConfig, PatchesAndImagesNeedNotBeSquare) {
  const VMoEConfig config = parsed_model(R"({"name": "VisionTransformerMoe", "patch_size": [4, 8],
                                             "image_size": [12, 16], "classifier": "gap"})");
  EXPECT_EQ(config.patch_size, Size2d(4, 8));
  EXPECT_EQ(config.image_size, Size2d(12, 16));
  EXPECT_EQ(config.num_tokens(), 6);
  EXPECT_THAT(refused_model(R"({"name": "vmoe", "patch_size": [4, 8], "image_size": 12})"),
              HasSubstr("patch_size [4, 8] does not divide image_size 12"));
}

TEST(VMoEModelConfig, RoutersMayBeDeterministicAndCapacitiesAbsolute) {
  const auto router = parsed_model(R"({"name": "VisionTransformerMoe", "encoder": {"moe": {
      "layers": [3, 1, 3], "group_size": 17, "router": {
      "name": "vmoe.nn.routing.NoisyTopExpertsPerItemRouter", "deterministic": true, "dispatcher":
      {"name": "einsum", "capacity": 9, "capacity_factor": null, "capacity_multiple_of": 0}}}}})");
  EXPECT_EQ(router.encoder.moe.router.noise, kNoiseNever);
  EXPECT_EQ(router.encoder.moe.layers, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(router.encoder.moe.router.capacity.rows, 9);
  EXPECT_EQ(router.encoder.moe.router.capacity.multiple_of, 1);
  const auto refused = [](const std::string& dispatcher) {
    return refused_model(R"({"name": "VisionTransformerMoe", "encoder": {"moe": {"layers": [1],
        "num_experts": 8, "group_size": 4, "router": {"dispatcher": )" +
                         dispatcher + "}}}}");
  };
  EXPECT_THAT(refused(R"({"capacity": 2, "capacity_factor": 1.5})"), HasSubstr("leave one out"));
  EXPECT_THAT(refused(R"({"name": "indexes", "capacity": 2})"),
              HasSubstr("did you mean 'indices'"));
  EXPECT_THAT(refused(R"({"capacity_factor": 0.5, "capacity_ceil_or_round": "round"})"),
              AllOf(HasSubstr("capacity_factor 0.5 is too small"), HasSubstr("4 tokens")));
}

/// The reference's router takes what is given for its own, whatever the network does.
TEST(VMoEModelConfig, NoiseIsDrawnInEvaluationTooWhereARouterIsNotDeterministic) {
  const auto noise = [](const std::string& setting) {
    return parsed_model(R"({"name": "VisionTransformerMoe", "encoder": {"moe": {"router": {)" +
                        setting + "}}}}")
        .encoder.moe.router.noise;
  };
  EXPECT_EQ(noise(""), kNoiseInTraining);
  EXPECT_EQ(noise(R"("deterministic": true)"), kNoiseNever);
  EXPECT_EQ(noise(R"("deterministic": false)"), kNoiseAlways);
  EXPECT_EQ(noise(R"("deterministic": null)"), kNoiseAlways);
  EXPECT_EQ(noise(R"("noise": "training")"), kNoiseInTraining);
  const std::string router = R"({"name": "VisionTransformerMoe", "encoder": {"moe": {"router": {)";
  EXPECT_THAT(refused_model(router + R"("deterministic": "no"}}}})"),
              HasSubstr("'encoder.moe.router.deterministic' must be"));
  EXPECT_THAT(refused_model(router + R"("deterministic": true, "noise": "never"}}}})"),
              HasSubstr("'encoder.moe.router.noise' is given twice: "
                        "'encoder.moe.router.deterministic' is the same setting; leave one out"));
}

TEST(VMoEModelConfig, ARouterIsNamedWithoutACall) {
  const std::string call = "routing.NoisyTopExpertPerItemRouter(noise_std=1.0)";
  const std::string moe = R"({"name": "VisionTransformerMoe", "encoder": {"moe": {"router": )";
  EXPECT_THAT(refused_model(moe + "\n{\"name\": \"" + call + "\"}}}}"),
              AllOf(HasSubstr("config.json:2:"),
                    HasSubstr("encoder.moe.router.name '" + call +
                              "' is a call; give its "
                              "arguments as settings beside the name"),
                    HasSubstr("did you mean 'NoisyTopExpertsPerItemRouter'?")));
}

TEST(VMoEModelConfig, NumbersOfAnotherKindAreRefused) {
  EXPECT_THAT(
      refused_model(R"({"name": "VisionTransformerMoe", "encoder": {"dtype": "bfloat16"}})"),
      HasSubstr("encoder.dtype 'bfloat16' is not supported; choose one of float32"));
  EXPECT_NO_THROW(
      read_model(R"({"name": "VisionTransformerMoe", "encoder": {"dtype": "float32"}})"));
}

TEST(VMoEModelConfig, PositionsAndHeadsAsTheReferenceNamesThem) {
  const auto named = [](const std::string& position) {
    return parsed_model(R"({"name": "VisionTransformerMoe", "hidden_size": 8, "num_classes": null,
                            "encoder": {"num_heads": 2, "position_emb": )" +
                        position + "}}");
  };
  EXPECT_EQ(named("null").encoder.position_emb.name, kLearned);
  EXPECT_EQ(named("{}").encoder.position_emb.name, kLearned);
  EXPECT_EQ(named(R"({"name": "none"})").encoder.position_emb.name, kNoPosition);
  const VMoEConfig waves = named(R"({"name": "sincos2d", "temperature": 100, "h": 2, "w": 2})");
  EXPECT_EQ(waves.encoder.position_emb.temperature, 100.0);
  EXPECT_EQ(waves.num_classes, 0);
  EXPECT_THAT(refused_model(R"({"name": "VisionTransformerMoe", "hidden_size": 10, "encoder":
                                {"num_heads": 2, "position_emb": {"name": "sincos2d"}}})"),
              HasSubstr("multiple of 4 and at least 8, found 10"));
}

/// They always learn their positions, and their blocks never normalize.
TEST(VMoEModelConfig, EnsemblesIgnoreWhatTheReferencesDo) {
  const VMoEModelConfig config =
      read_model(R"({"name": "VisionTransformerMoeEnsemble", "encoder": {"attention_qk_norm": true,
                     "position_emb": {"name": "sincos2d"}}})");
  EXPECT_EQ(find_setting(config.model, "encoder.position_emb"), nullptr);
  EXPECT_EQ(find_setting(config.model, "encoder.attention_qk_norm"), nullptr);
  EXPECT_THAT(config.unused,
              AllOf(Contains("encoder.position_emb"), Contains("encoder.attention_qk_norm")));
}

TEST(VMoEModelConfig, AnEnsemblesAttentionPoolingMayNormalize) {
  const std::string text = R"({"name": "VisionTransformerMoeEnsemble", "classifier": "map",
                               "encoder": {"attention_qk_norm": true}})";
  EXPECT_TRUE(read_model(text).unused.empty());
  const VMoEConfig config = parsed_model(text);
  EXPECT_FALSE(config.encoder.attention_qk_norm);
  EXPECT_TRUE(config.has_map_head_qk_norm());
}

TEST(VMoEModelConfig, TheDenseClassHasNoExperts) {
  EXPECT_THAT(refused_model(R"({"name": "VisionTransformer", "transformer": {"moe":
                                {"layers": [1]}}})"),
              HasSubstr("VisionTransformer has no experts, but encoder.moe.layers is [1]; choose "
                        "VisionTransformerMoe"));
  EXPECT_NO_THROW(
      read_model(R"({"name": "VisionTransformer", "encoder": {"moe": {"layers": []}}})"));
}

TEST(VMoEModelConfig, ARunConfigurationContainsTheModel) {
  const std::string run = R"({"model": {"name": "VisionTransformerMoe", "patch_size": 4},
                              "image_size": 8, "notes": "x", "seed": 1})";
  EXPECT_EQ(parsed_model(run).image_size, 8);
  EXPECT_THAT(read_model(run).unused, AllOf(Contains("notes"), Contains("seed")));
}

TEST(VMoEModelConfig, EveryConfigurationOfTheReference) {
  NEEDS_REFERENCE();
  for (const std::string name :
       {"vmoe_top2", "vmoe_bpr", "e3", "expert_choice", "train/adam", "train/e3_sgd", "ckpt_format",
        "finetune_init/e3_reshape", "finetune_init/upcycle"}) {
    const auto json = reference_config(name);
    const VMoEConfig whole = parsed_model(json.dump());
    EXPECT_EQ(whole.image_size, json["image_size"].get<int64_t>()) << name;
    EXPECT_EQ(whole.num_classes, json["model"]["num_classes"]) << name;
    EXPECT_EQ(whole.encoder.moe.group_size, json["model"]["encoder"]["moe"]["group_size"]) << name;
    EXPECT_NO_THROW(read_model(json["model"].dump())) << name;
  }
}

TEST(VMoEModelConfig, AnUnknownSettingHasItsPlaceAndTheNearestName) {
  EXPECT_THAT(refused_model("{\"name\": \"VisionTransformerMoe\",\n \"num_clases\": 3}"),
              AllOf(HasSubstr("config.json:2:2: unknown key 'num_clases'"),
                    HasSubstr("did you mean 'num_classes'?")));
  EXPECT_THAT(refused_model(R"({"name": "vmoe", "encoder": {"moe": {"router": {"dispatcher":
                          {"capacity_fctor": 1}}}}})"),
              AllOf(HasSubstr("config.json:2:"), HasSubstr("in encoder.moe.router.dispatcher"),
                    HasSubstr("did you mean 'capacity_factor'?")));
  EXPECT_THAT(refused_model(R"({"name": "VisionTransfomerMoe"})"),
              HasSubstr("did you mean 'VisionTransformerMoe'?"));
  EXPECT_THAT(refused_model(R"({"patch_size": 4})"), HasSubstr("missing key 'name'"));
  EXPECT_THAT(refused_model(R"({"name": "vmoe", "patch_size": [4, 8, 4]})"),
              HasSubstr("one number or [height, width], found [4,8,4]"));
  EXPECT_THAT(refused_model(R"({"name": "vmoe", "classes": 3, "num_classes": 3})"),
              HasSubstr("'num_classes' is given twice: 'classes' is the same setting"));
  EXPECT_THAT(refused_model(R"({"name": "vmoe", "patch_size": 4, "patches": {"size": 4}})"),
              HasSubstr("'patches' is given twice: 'patch_size' is the same setting"));
  EXPECT_THAT(
      refused_model(R"({"name": "vmoe", "encoder": {"position_emb": {"name": "sincos2"}}})"),
      HasSubstr("did you mean 'sincos2d'?"));
  EXPECT_THAT(refused_model(R"({"name": "vmoe", "hidden_size": "wide"})"),
              HasSubstr("config.json:1:33: 'model.hidden_size' must be an integer"));
  EXPECT_THAT(refused_model("[1]"), HasSubstr("must be an object"));
}

/// A network's arrays, and a configuration that says nothing of what they tell.
class VMoEFacts : public ::testing::Test {
 protected:
  VMoEArrays arrays() const {
    TensorMap state;
    for (const VMoETensor& tensor : vmoe_tensors(config)) {
      state[tensor.name] = at::zeros(tensor.shape);
    }
    return arrays_of_network(config, state, "ckpt");
  }
  VMoEConfig completed(const std::string& text) const {
    return parse<VMoEConfig>(with_facts(read_model(text), vmoe_facts(arrays()), "ckpt"), "model");
  }
  std::string mismatch(const std::string& text) const {
    return test::usage_of([&] { with_facts(read_model(text), vmoe_facts(arrays()), "ckpt"); });
  }

  VMoEConfig config = import_config();
};

TEST_F(VMoEFacts, FillWhatTheConfigurationLeavesOut) {
  const Value model = with_facts(
      read_model(R"({"name": "VisionTransformerMoe", "encoder": {"moe": {"group_size": 34, "router":
               {"num_selected_experts": 2, "dispatcher": {"capacity_factor": 1.5}}}}})"),
      vmoe_facts(arrays()), "ckpt");
  VMoEConfig wanted = config;
  wanted.encoder.moe.split_rngs = false;
  wanted.encoder.moe.router.noise_std = 1.0;
  wanted.encoder.moe.router.importance_loss_weight = 1.0;
  wanted.encoder.moe.router.load_loss_weight = 1.0;
  EXPECT_EQ(to_json(parse<VMoEConfig>(model, "model")), to_json(wanted));
}

TEST_F(VMoEFacts, BothValuesAreSaidWhereTheConfigurationIsWrong) {
  const std::map<std::string, std::string> cases = {
      {R"("hidden_size": 16)", "hidden_size is 16, but ckpt has 12: embedding/kernel is"},
      {R"("patch_size": 4)", "patch_size is 4, but ckpt has 8"},
      {R"("image_size": 64)", "image_size is 64, but ckpt has 32: Encoder/posembed_input"},
      {R"("classes": 1000)", ": classes is 1000, but ckpt has 5: head/kernel is [12, 5]"},
      {R"("patches": {"size": 4})", ": patches is 4, but ckpt has 8"},
      {R"("num_classes": 1000)", ": num_classes is 1000, but ckpt has 5: head/kernel is [12, 5]"},
      {R"("classifier": "gap")", "classifier is \"gap\", but ckpt has \"token\": there is a 'cls'"},
      {R"("representation_size": 4)", "representation_size is 4, but ckpt has 0: there is no"},
      {R"("encoder": {"num_layers": 12})", "encoder.num_layers is 12, but ckpt has 4"},
      {R"("encoder": {"num_heads": 4})", "encoder.num_heads is 4, but ckpt has 3"},
      {R"("encoder": {"mlp_dim": 40})", "encoder.mlp_dim is 40, but ckpt has 20"},
      {R"("encoder": {"attention_qk_norm": true})",
       "attention_qk_norm is true, but ckpt has false"},
      {R"("encoder": {"moe": {"layers": [1, 2]}})", "layers is [1,2], but ckpt has [1,3]"},
      {R"("encoder": {"moe": {"num_experts": 4}})", "num_experts is 4, but ckpt has 8"},
      {R"("encoder": {"moe": {"ensemble_size": 2}})", "ensemble_size is 2, but ckpt has 1"}};
  for (const auto& [setting, message] : cases) {
    EXPECT_THAT(mismatch("{\"name\": \"vmoe\",\n" + setting + "}"),
                AllOf(HasSubstr("config.json:2:"), HasSubstr(message)));
  }
}

TEST_F(VMoEFacts, WhatNothingTellsIsAskedFor) {
  EXPECT_THAT(mismatch(R"({"name": "VisionTransformerMoe"})"),
              HasSubstr("must have encoder.moe.group_size, "
                        "encoder.moe.router.dispatcher.capacity_factor, which"));
  EXPECT_THAT(
      mismatch(R"({"name": "VisionTransformerMoe", "encoder": {"moe": {"group_size": 17}}})"),
      HasSubstr("must have encoder.moe.router.dispatcher.capacity_factor, which"));
  EXPECT_THAT(mismatch(R"({"name": "VisionTransformerMoe", "encoder": {"moe": {"group_size": 17,
      "router": {"dispatcher": {"capacity": 0, "capacity_factor": null}}}}})"),
              HasSubstr("needs a capacity_factor above 0"));
}

TEST_F(VMoEFacts, OtherArraysAreNoVMoE) {
  const test::TempDir folder;
  write_arrays(folder / "ckpt", {{"x", at::ones({2, 3})}, {"y/z", at::ones({1})}});
  const VMoEFileArrays arrays = arrays_of_files(folder / "ckpt");
  EXPECT_THAT(test::failure_of([&] { vmoe_facts(arrays); }),
              AllOf(HasSubstr("no array 'embedding/kernel'"), HasSubstr("it has x, y/z")));
}

TEST_F(VMoEFacts, SizesOfArraysWithoutElementsAreNotBelieved) {
  const test::TempDir folder;
  TensorMap arrays = random_arrays(import_config());
  arrays["Encoder/posembed_input/pos_embedding"] = at::empty({1, int64_t{1} << 60, 0});
  write_arrays(folder / "ckpt", arrays);
  const VMoEFileArrays read = arrays_of_files(folder / "ckpt");
  EXPECT_THAT(test::failure_of([&] { vmoe_facts(read); }),
              HasSubstr("pos_embedding is [1, 1152921504606846976, 0]: no parameter has that"));
}

TEST_F(VMoEFacts, TellTheDenseClassFromOthers) {
  EXPECT_THAT(mismatch(R"({"name": "VisionTransformer"})"),
              HasSubstr("has no experts, but in ckpt those blocks have a 'Moe'; choose Vision"));
  config.encoder.moe.layers = {};
  EXPECT_TRUE(completed(R"({"name": "VisionTransformer"})").encoder.moe.layers.empty());
}

TEST_F(VMoEFacts, ImagesThatAreNotSquareAreAskedFor) {
  config.encoder.moe.layers = {};
  config.patch_size = {4, 8};
  config.image_size = {8, 24};
  EXPECT_THAT(mismatch(R"({"name": "VisionTransformerMoe"})"),
              AllOf(HasSubstr("must have image_size"), HasSubstr("6 patches and a class token")));
  EXPECT_EQ(completed(R"({"name": "VisionTransformerMoe", "image_size": [12, 16]})").image_size,
            Size2d(12, 16));
  EXPECT_THAT(mismatch(R"({"name": "VisionTransformerMoe", "image_size": [8, 16]})"),
              HasSubstr("image_size is [8,16], but ckpt has another: Encoder/posembed_input"));
  config.image_size = {8, 16};
  EXPECT_EQ(completed(R"({"name": "VisionTransformerMoe"})").image_size, Size2d(8, 16));
}

TEST_F(VMoEFacts, ARouterTellsTheFamily) {
  config.name = kE3;
  const std::string moe = R"("encoder": {"moe": {"group_size": 17, "router": {"dispatcher":
                             {"capacity": 4}}}}})";
  const VMoEConfig one = completed(R"({"name": "VisionTransformerMoeEnsemble", )" + moe);
  EXPECT_EQ(one.name, kE3);
  EXPECT_EQ(one.encoder.moe.ensemble_size, 1);
  EXPECT_THAT(mismatch(R"({"name": "VisionTransformerMoe", )" + moe),
              HasSubstr("name is \"vmoe\", but ckpt has \"e3\": "
                        "Encoder/encoderblock_1/Moe/Router/dense/kernel is [12, 1, 8]"));
}

TEST_F(VMoEFacts, WhatTheArraysLackTheConfigurationSays) {
  config.encoder.moe.layers = {};
  config.encoder.position_emb.name = kSinCos2d;
  config.num_classes = 0;
  EXPECT_THAT(mismatch(R"({"name": "VisionTransformerMoe"})"),
              HasSubstr("must have encoder.position_emb.name: there is no 'Encoder/posembed"));
  const std::string waves = R"({"name": "VisionTransformerMoe", "encoder": {"position_emb":
                                {"name": "sincos2d"}})";
  EXPECT_THAT(mismatch(waves + "}"), HasSubstr("must have image_size"));
  EXPECT_THAT(mismatch(waves + R"(, "image_size": 32, "num_classes": 5})"),
              HasSubstr("classes is 5, but ckpt has 0: there is no 'head/kernel'"));
  EXPECT_EQ(to_json(completed(waves + R"(, "image_size": 32})").encoder.position_emb),
            to_json(config.encoder.position_emb));
  config.encoder.position_emb.name = kLearned;
  EXPECT_THAT(mismatch(waves + "}"),
              HasSubstr("position_emb.name is \"sincos2d\", but ckpt has \"learned\""));
}

TEST_F(VMoEFacts, TellWhetherAttentionPoolingAloneNormalizes) {
  config.name = kE3;
  config.encoder.moe.ensemble_size = 2;
  config.classifier = "map";
  config.map_head_qk_norm = true;
  const std::string moe = R"("moe": {"group_size": 32, "router": {"dispatcher": {"capacity": 4}}})";
  const std::string name = R"({"name": "VisionTransformerMoeEnsemble", "classifier": "map", )";
  EXPECT_EQ(completed(name + R"("encoder": {)" + moe + "}}").map_head_qk_norm, true);
  EXPECT_EQ(
      completed(name + R"("encoder": {"attention_qk_norm": true, )" + moe + "}}").map_head_qk_norm,
      true);
  EXPECT_THAT(mismatch(name + R"("encoder": {"attention_qk_norm": false, )" + moe + "}}"),
              HasSubstr("map_head_qk_norm is false, but ckpt has true: there is a 'MapHead/"));
}

TEST_F(VMoEFacts, ExpertsMayHaveAWidthOfTheirOwn) {
  config.encoder.moe.mlp_dim = 6;
  const VMoEConfig found = completed(
      R"({"name": "VisionTransformerMoe", "encoder": {"moe": {"group_size": 17, "router":
         {"dispatcher": {"capacity": 4}}}}})");
  EXPECT_EQ(found.encoder.mlp_dim, 20);
  EXPECT_EQ(found.encoder.expert_dim(), 6);
}

}  // namespace
}  // namespace moesaic::testing
