// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/vmoe/config.h"

#include "base/support.h"
#include "moesaic/checkpoint/tensors.h"
#include "support/matchers.h"
#include "support/models.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

Value config_with(const std::string& change) {
  Document document = Document::from_text(R"({"name": "vmoe", "encoder": {"num_layers": 2,
    "moe": {"layers": [1]}}})",
                                          "recipe.json");
  document.set(change);
  return document.root();
}

std::string refusal_with(const std::string& change) {
  return test::usage_of([&] { build_model(config_with(change), 0); });
}

TEST(VMoEConfig, CountsTheParametersOfTheNetworkItDescribes) {
  std::vector<VMoEConfig> configs(8, small_vmoe_config());
  configs[1].classifier = "gap";
  configs[2].encoder.moe.kept_experts["3"] = {0, 4};
  configs[3].encoder.moe.layers = {};
  configs[4].classifier = "map";
  configs[4].encoder.attention_qk_norm = true;
  configs[5].representation_size = 7;
  configs[5].classifier = "0";
  configs[7].classifier = "map";
  configs[7].map_head_qk_norm = true;
  configs[6].name = kE3;
  configs[6].encoder.moe.ensemble_size = 3;
  for (const VMoEConfig& config : configs) {
    EXPECT_EQ(count_parameters(Value::from_json(to_json(config), "model")),
              static_cast<double>(VMoE(config, 1).num_parameters()));
  }
}

TEST(VMoEConfig, RoutersHaveShortNames) {
  for (
      const auto& [given, name] :
      {std::pair{R"({"name": "token_choice", "num_selected_experts": 2})", kTokenChoice},
       {R"({"name": "token_choice", "num_selected_experts": 1, "dispatcher": {"capacity_factor": 1.25}})",
        kTokenChoice},
       {R"({"name": "expert_choice", "dispatcher": {"capacity_factor": 2}})", kExpertChoice},
       {R"({"name": "threshold", "threshold": 0.1, "gate": "one"})", kAdaptive}}) {
    const Value value = config_with(std::string("encoder.moe.router=") + given);
    const auto config = parse<VMoEConfig>(value, "model");
    EXPECT_STREQ(routing_kind_name(config.encoder.moe.router.kind), name);
    EXPECT_EQ(to_json(config)["encoder"]["moe"]["router"]["name"], name);
    const auto again = parse<VMoEConfig>(Value::from_json(to_json(config), "again"));
    EXPECT_EQ(again.encoder.moe.router.kind, config.encoder.moe.router.kind);
  }
}

TEST(VMoEConfig, AMapHeadMayNormalizeByItself) {
  VMoEConfig config = small_vmoe_config();
  config.map_head_qk_norm = true;
  EXPECT_THAT(config_problem(config).text, HasSubstr("map_head_qk_norm is for the classifier"));
  config.classifier = "map";
  EXPECT_TRUE(config_problem(config).empty());
  for (const auto& [own, blocks, wanted] : {std::tuple{std::optional<bool>(), true, true},
                                            std::tuple{std::optional<bool>(), false, false},
                                            std::tuple{std::optional(true), false, true},
                                            std::tuple{std::optional(false), true, false}}) {
    config.map_head_qk_norm = own;
    config.encoder.attention_qk_norm = blocks;
    const VMoE model(config, 1);
    EXPECT_EQ(!model.map_head->attention->query_norm.is_empty(), wanted);
    EXPECT_EQ(state_of(model).contains("blocks.0.attention.query_norm.weight"), blocks);
    EXPECT_EQ(parse<VMoEConfig>(Value::from_json(model.config(), "x")).map_head_qk_norm, own);
  }
}

TEST(VMoEConfig, BoundsEverySetting) {
  for (const char* setting :
       {"encoder.num_layers", "encoder.num_heads", "encoder.mlp_dim", "encoder.moe.num_experts",
        "encoder.moe.group_size", "encoder.moe.router.num_selected_experts", "image_size",
        "channels", "patch_size", "hidden_size", "num_classes"}) {
    for (const char* value : {"=-1", "=1000000000000000000"}) {
      EXPECT_THAT(refusal_with(setting + std::string(value)),
                  AllOf(HasSubstr(setting), HasSubstr("must be between")));
    }
  }
  EXPECT_THAT(refusal_with("encoder.moe.router.dispatcher.capacity_factor=1e300"),
              HasSubstr("must be between 0 and 1000000"));
}

TEST(VMoEConfig, ANetworkThatNoMachineHoldsIsRefusedBeforeItIsBuilt) {
  EXPECT_THAT(
      refusal_with(R"(encoder={"mlp_dim": 1048576, "moe": {"layers": [1], "num_experts": 65536}})"),
      AllOf(HasSubstr("recipe.json:1:1"), HasSubstr("parameters needs")));
}

TEST(VMoEConfig, ATensorThat64BitsDoNotCountIsRefusedInOneLine) {
  Document document = Document::from_text(
      R"({"name": "vmoe", "image_size": 65536, "patch_size": 65536, "channels": 4096,
          "hidden_size": 1048576, "encoder": {"num_layers": 1}})",
      "recipe.json");
  const std::string message = test::usage_of([&] { build_meta_model(document.root()); });
  EXPECT_THAT(message, AllOf(HasSubstr("recipe.json:1:1"), HasSubstr("2^63 bytes")));
  EXPECT_EQ(test::usage_of([&] { build_model(document.root(), 0); }), message);
}

TEST(VMoEConfig, PointsAtTheSettingThatDoesNotFit) {
  EXPECT_THAT(refusal_with("patch_size=5"),
              HasSubstr("argument 'patch_size=5': patch_size 5 does not divide"));
  EXPECT_THAT(refusal_with("encoder.num_layers=1"), HasSubstr("argument 'encoder.num_layers=1': "));
}

TEST(VMoEConfig, SaysTheFullNameOfWhatDoesNotFit) {
  EXPECT_THAT(refusal_with("patch_size=5"), EndsWith(" image_size 30 (model.patch_size)"));
}

TEST(VMoEConfig, BatchPriorityNeedsACapacity) {
  const std::string dispatcher = "encoder.moe.router.dispatcher=";
  EXPECT_THAT(refusal_with(dispatcher + R"({"batch_priority": true})"),
              HasSubstr("none is without encoder.moe.router.dispatcher.capacity_factor; set that"));
  EXPECT_THAT(
      refusal_with(R"(encoder.moe.router={"name": "NoisyTopItemsPerExpertRouter", "dispatcher":
                         {"batch_priority": true, "capacity_factor": 1}})"),
      HasSubstr("experts choose; leave it out"));
  EXPECT_NO_THROW(build_model(
      config_with(dispatcher + R"({"batch_priority": true, "capacity_factor": 1})"), 0));
}

TEST(VMoEConfig, AnEvaluationCapacityIsCheckedAsThatOfTraining) {
  EXPECT_THAT(refusal_with(R"(encoder.moe.router={"name": "NoisyTopItemsPerExpertRouter",
                  "dispatcher": {"capacity_factor": 1, "evaluation_capacity_factor": 0}})"),
              HasSubstr("evaluation_capacity_factor is 0, but expert choice needs a capacity"));
  EXPECT_THAT(refusal_with(R"(encoder.moe.router={"name": "adaptive", "gate": "one",
                  "dispatcher": {"evaluation_capacity_factor": 2}})"),
              HasSubstr("drops no token"));
  EXPECT_THAT(refusal_with(R"(encoder.moe={"layers": [1], "group_size": 16, "router": {"dispatcher":
                  {"capacity_rounding": "round", "evaluation_capacity_factor": 0.1}}})"),
              HasSubstr("dispatcher.evaluation_capacity_factor 0.1 is too small"));
  EXPECT_NO_THROW(build_model(config_with(R"(encoder.moe.router.dispatcher={"batch_priority": true,
                                 "evaluation_capacity_factor": 0.5})"),
                              0));
}

TEST(VMoEConfig, GroupsMayBeCountedInImages) {
  const auto group_of = [](const std::string& moe) {
    const auto model = build_meta_model(config_with("encoder.moe=" + moe));
    return model->moe_blocks()[0].layer->options().rule.group_size;
  };
  EXPECT_EQ(group_of(R"({"layers": [1], "num_group_images": 3})"), 3 * 17);
  EXPECT_EQ(group_of(R"({"layers": [1], "num_group_images": 3, "group_size": 5})"), 5);
  VMoEConfig ensemble = small_vmoe_config();
  ensemble.name = kE3;
  ensemble.encoder.moe.ensemble_size = 2;
  ensemble.encoder.moe.num_group_images = 3;
  EXPECT_EQ(ensemble.group_size(), 3 * 2 * 17);
  EXPECT_THAT(refusal_with(R"(encoder.moe={"layers": [1], "num_group_images": 2147483647})"),
              HasSubstr("tokens exceed the"));
}

TEST(BuildModel, NamesWhatIsNoModel) {
  const auto refusal = [](const char* text) {
    return test::usage_of([&] { testing::model_from(text); });
  };
  EXPECT_THAT(refusal("3"), HasSubstr("model.json:1:1: 'model' must be an object"));
  EXPECT_THAT(refusal("\"vmoe/s\""),
              EndsWith("; write {\"preset\": \"vmoe/s\"} or model.preset=vmoe/s"));
  EXPECT_THAT(refusal("{}"), AllOf(HasSubstr("missing key 'name' in model"), HasSubstr("vmoe")));
}

}  // namespace
}  // namespace moesaic
