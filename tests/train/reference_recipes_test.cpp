// SPDX-License-Identifier: Apache-2.0
// Given of recipes that others' configurations and code give.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "moesaic/base/path.h"
#include "moesaic/config/document.h"
#include "moesaic/models/registry.h"
#include "moesaic/train/run_plan.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;
using Given = std::map<std::string, Json>;

/// Returns a recipe with all defaults and its preset's settings.
Json with_defaults(const std::string& recipe) {
  RunConfig run = parse<RunConfig>(Document::from_file(resource("models") / recipe).root());
  run.model = Value::from_json(build_initial_meta_model(run)->config(), "model");
  return to_json(run);
}

void expect_given(const std::string& recipe, const Given& numbers) {
  const Json found = with_defaults(recipe);
  for (const auto& [place, value] : numbers) {
    const Json::json_pointer pointer(place);
    ASSERT_TRUE(found.contains(pointer)) << recipe << " " << place;
    EXPECT_EQ(found.at(pointer), value) << recipe << " " << place;
  }
}

// vmoe/configs/vmoe_paper/pretrain_imagenet21k.py
TEST(ReferenceRecipes, PretrainingOnImageNet21k) {
  expect_given("vmoe/recipes/pretrain-imagenet21k.json",
               {{"/phases/0/optimizer/name", "adamw"},
                {"/phases/0/optimizer/lr", 8e-4},
                {"/phases/0/optimizer/weight_decays/0/value", 0.1},
                {"/phases/0/batch_size", 4096},
                {"/phases/0/epochs", 300},
                {"/phases/0/schedule/name", "linear"},
                {"/phases/0/schedule/warmup_steps", 10000},
                {"/phases/0/schedule/end_lr", 1e-5},
                {"/phases/0/clip_norm", 1.0},
                {"/phases/0/loss", "sigmoid"},
                {"/phases/0/augment/mixup", 0.5},
                {"/phases/0/augment/rand_augment/num_layers", 2},
                {"/phases/0/augment/rand_augment/magnitude", 20},
                {"/model/num_classes", 21843},
                {"/model/head_bias_init", -10.0},
                {"/model/encoder/moe/num_experts", 8},
                {"/model/encoder/moe/layers", {1, 3, 5, 7, 9, 11}},
                {"/model/encoder/moe/num_group_images", 8},
                {"/model/encoder/moe/split_rngs", false}});
}

// vmoe/configs/vmoe_paper/vmoe_s32_last2_ilsvrc2012_randaug_light1.py
TEST(ReferenceRecipes, SmallNetworkOnImageNet) {
  expect_given("vmoe/recipes/s32-last2-ilsvrc2012-randaug-light1.json",
               {{"/phases/0/optimizer/lr", 3e-3},
                {"/phases/0/optimizer/weight_decays/0/value", 0.1},
                {"/phases/0/batch_size", 8192},
                {"/phases/0/epochs", 300},
                {"/phases/0/schedule/warmup_steps", 10000},
                {"/phases/0/augment/mixup", 0.2},
                {"/phases/0/augment/rand_augment/num_layers", 2},
                {"/phases/0/augment/rand_augment/magnitude", 10},
                {"/phases/0/preprocess/size", 224},
                {"/model/patch_size", 32},
                {"/model/hidden_size", 512},
                {"/model/representation_size", 512},
                {"/model/num_classes", 1000},
                {"/model/encoder/moe/layers", {5, 7}},
                {"/model/encoder/moe/num_experts", 8},
                {"/model/encoder/moe/dropout_rate", 0.2},
                {"/model/encoder/moe/router/dispatcher/capacity_factor", 1.05},
                {"/model/encoder/moe/router/dispatcher/evaluation_capacity_factor", 4.0}});
}

// vmoe/configs/vmoe_paper/vmoe_s32_last2_ilsvrc2012_randaug_light1_ft_ilsvrc2012.py
TEST(ReferenceRecipes, FineTuningAt384Pixels) {
  expect_given("vmoe/recipes/s32-last2-ilsvrc2012-randaug-light1-384.json",
               {{"/phases/0/optimizer/name", "sgd"},
                {"/phases/0/optimizer/lr", 0.003},
                {"/phases/0/optimizer/momentum", 0.9},
                {"/phases/0/batch_size", 1024},
                {"/phases/0/steps", 10000},
                {"/phases/0/schedule/name", "cosine"},
                {"/phases/0/schedule/warmup_steps", 500},
                {"/phases/0/clip_norm", 10.0},
                {"/model/image_size", 384},
                {"/phases/0/preprocess/size", 384},
                {"/model/representation_size", 0},
                {"/model/encoder/moe/router/dispatcher/capacity_factor", 1.5}});
}

TEST(ReferenceRecipes, EnsembleOnCifar10) {
  expect_given("e3/recipes/cifar10.json", {{"/phases/0/optimizer/lr", 0.005},
                                           {"/phases/0/batch_size", 1024},
                                           {"/phases/0/steps", 2000},
                                           {"/phases/0/schedule/warmup_steps", 200},
                                           {"/phases/0/loss", "ensemble_softmax"},
                                           {"/model/num_classes", 10},
                                           {"/model/encoder/moe/ensemble_size", 2},
                                           {"/model/encoder/moe/group_size", 4352}});
}

// vmoe/data/pp_ops.py resizes without antialias and drops the fractions of bytes.
TEST(ReferenceRecipes, ResizeAsTheReference) {
  for (const char* recipe : {"vmoe/recipes/cifar10.json", "vmoe/recipes/cifar100.json",
                             "vmoe/recipes/imagenet.json", "vmoe/recipes/pretrain-imagenet21k.json",
                             "vmoe/recipes/s32-last2-ilsvrc2012-randaug-light1.json",
                             "vmoe/recipes/s32-last2-ilsvrc2012-randaug-light1-384.json",
                             "e3/recipes/cifar10.json", "e3/recipes/cifar100.json"}) {
    expect_given(recipe, {{"/phases/0/preprocess/antialias", false},
                          {"/phases/0/preprocess/truncate", true},
                          {"/phases/0/preprocess/values", "symmetric"}});
  }
}

// cifar10-rotate/main.py of the clusters paper's released code.
TEST(ReferenceRecipes, ClustersOfImages) {
  const Given both = {{"/phases/0/preprocess/mean", {0.4914, 0.4822, 0.4465}},
                      {"/phases/0/preprocess/std", {0.2023, 0.1994, 0.2010}},
                      {"/phases/0/batch_size", 128}};
  Given single = both, mixture = both;
  single.insert({{"/phases/0/schedule/period", 200}, {"/phases/0/schedule/by_epoch", true}});
  const std::string experts = "/phases/0/optimizers/0/schedule/";
  mixture.insert({{experts + "name", "cosine"},
                  {experts + "period", 200},
                  {experts + "by_epoch", true},
                  {"/phases/0/schedule/name", "constant"},
                  {"/phases/0/optimizer/lr", 1e-4},
                  {"/phases/0/optimizers/0/optimizer/expert_norm", "joint"},
                  {"/phases/0/aux_losses/switch_balance", 0.001}});
  for (const std::string data : {"cifar10", "cifar10-rotate"}) {
    expect_given("clusters/recipes/" + data + "-single.json", single);
    expect_given("clusters/recipes/" + data + "-moe.json", mixture);
  }
  const Json code =
      Document::from_file(resource("models") / "clusters/experiments/parts/code-image.json")
          .root()
          .to_json();
  EXPECT_EQ(code, Json::parse(R"({"phases.0.optimizers.0.optimizer.expert_norm": "sum",
                                  "phases.0.aux_losses": {"switch_balance": 0.01}})"));
}

// linguistic/main.py of the same code.
TEST(ReferenceRecipes, ClustersOfLanguages) {
  expect_given("clusters/recipes/language-moe.json",
               {{"/phases/0/optimizers/0/optimizer/lr", 0.001},
                {"/phases/0/optimizers/0/optimizer/momentum", 0.9},
                {"/phases/0/optimizers/0/optimizer/l2", 5e-4},
                {"/phases/0/optimizers/0/optimizer/expert_norm", "sum"},
                {"/phases/0/optimizers/0/schedule/name", "cosine"},
                {"/phases/0/optimizers/0/schedule/period", 200},
                {"/phases/0/optimizers/0/schedule/by_epoch", false},
                {"/phases/0/epochs", 300},
                {"/phases/0/loss", "softmax_twice"},
                {"/phases/0/aux_losses/switch_balance", 0.1},
                {"/phases/0/optimizer/momentum", 0.9},
                {"/phases/0/optimizer/l2", 5e-4},
                {"/phases/0/batch_size", 512},
                {"/model/init_scale", 0.001}});
}

// Algorithm 1 and theorem 4.2 of the same paper, as printed.
TEST(ReferenceRecipes, ClustersAsPrinted) {
  expect_given("clusters/recipes/setting1-printed.json",
               {{"/model/has_scalar_output", true},
                {"/model/bias", false},
                {"/model/init", "normal"},
                {"/model/router/gate", "softmax_all"},
                {"/model/router/gate_noise", false},
                {"/phases/0/loss", "softmax"},
                {"/phases/0/optimizers/0/optimizer/lr", 0.001},
                {"/phases/0/optimizer/lr", 0.1}});
}

}  // namespace
}  // namespace moesaic
