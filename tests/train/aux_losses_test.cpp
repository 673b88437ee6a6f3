// SPDX-License-Identifier: Apache-2.0
// Weights of auxiliary losses that could change nothing, found before a run starts.
#include "moesaic/train/objective.h"

#include <algorithm>

#include "moesaic/train/run_plan.h"
#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using train_test::config_of;
using train_test::error_of;
using train_test::four_phases;

const std::string kOwnLoad = "model.encoder.moe.router.load_loss_weight=1";
const std::string kNoNoise = "model.encoder.moe.router.noise_std=0";
const std::string kNoLayers = "model.encoder.moe.layers=[]";
const std::string kNoWeights = "phases.0.aux_losses={}";
const std::string kAdaptive4 = R"(model.encoder.moe.router={"name": "adaptive", "gate": "one"})";

void plan_weights(const std::vector<std::string>& changes) {
  const RunConfig config = config_of(four_phases(), changes);
  DatasetCache datasets(train_test::open_tiny);
  plan_phases(config, *build_initial_meta_model(config), datasets);
}

std::string refused_weights(const std::vector<std::string>& changes) {
  return error_of([&] { plan_weights(changes); });
}

std::vector<std::string> warnings_of_weights(const std::vector<std::string>& changes) {
  std::istringstream said(test::said_by([&] { EXPECT_EQ(refused_weights(changes), "no error"); }));
  std::vector<std::string> lines;
  for (std::string line; std::getline(said, line);) lines.push_back(line);
  return lines;
}

TEST(AuxLosses, ANetworkWithoutAMoELayerHasNone) {
  EXPECT_THAT(refused_weights({kNoLayers, "phases.0.aux_losses={\"importance\": 1}"}),
              AllOf(StartsWith("usage: argument 'phases.0.aux_losses="),
                    HasSubstr("phase 'pretrain': aux_losses.importance needs an MoE layer")));
  // Settings of a router that is not there are idle.
  EXPECT_TRUE(
      warnings_of_weights({kNoLayers, kNoWeights, kOwnLoad, "phases.prune.on_entry.prune=null"})
          .empty());

  const std::string single = R"({"name": "a",
      "model": {"name": "cluster-moe", "num_experts": 1, "router": null},
      "phases": [{"name": "train", "data": "clusters-figure1", "batch_size": 16, "steps": 1,
                  "aux_losses": {"importance": 1}}]})";
  EXPECT_THAT(error_of([&] {
                const RunConfig config = config_of(single);
                DatasetCache datasets(open_dataset);
                plan_phases(config, *build_initial_meta_model(config), datasets);
              }),
              AllOf(StartsWith("usage: recipe.json:4:"),
                    HasSubstr("phase 'train': aux_losses.importance needs an MoE layer")));
}

TEST(AuxLosses, AModelsOwnLoadLossWithoutNoiseIsWarnedOf) {
  const std::vector<std::string> changes = {kOwnLoad, kNoNoise, kNoWeights};
  const std::vector<std::string> said = warnings_of_weights(changes);
  ASSERT_EQ(said.size(), 3U);  // nothing is minimised in the phase without steps
  EXPECT_THAT(said[1],
              HasSubstr("argument 'model.encoder.moe.router.noise_std=0': phase 'finetune': the "
                        "model's weight of the load loss needs noise"));
  EXPECT_EQ(warnings_of_weights(
                {kOwnLoad, kNoNoise, kNoWeights, "phases.finetune.aux_losses={\"load\": 0}"})
                .size(),
            2U);
  EXPECT_TRUE(warnings_of_weights({kOwnLoad, kNoWeights}).empty());
}

TEST(AuxLosses, AModelsOwnWeightsMustFitItsRouter) {
  EXPECT_THAT(refused_weights({R"(model.encoder.moe.router={"name": "NoisyTopItemsPerExpertRouter",
                                  "num_selected_tokens": 5, "importance_loss_weight": 1})",
                               "model.encoder.moe.group_size=5", kNoWeights}),
              AllOf(StartsWith("usage: argument 'model.encoder.moe.router="),
                    HasSubstr("the model's weight of the importance loss balances tokens that "
                              "choose, but here experts choose")));
}

TEST(AuxLosses, ARouterThatNothingTrainsIsWarnedOf) {
  const std::string of_one =
      R"(model.encoder.moe.router={"num_selected_experts": 1, "gate": "softmax_selected"})";
  for (const std::string& router :
       {kAdaptive4, of_one, std::string("model.encoder.moe.router.gate=one")}) {
    const std::vector<std::string> said = warnings_of_weights({router, kNoWeights});
    ASSERT_EQ(said.size(), 3U) << router;
    EXPECT_THAT(said[0], HasSubstr("phase 'pretrain': the router's gates are 1, so "
                                   "blocks.1.moe.router.weight gets no gradient"));
  }
  EXPECT_EQ(warnings_of_weights({kAdaptive4, "phases.0.aux_losses={\"router_z\": 0.1}"}).size(),
            2U);
  EXPECT_EQ(warnings_of_weights({kAdaptive4, kNoWeights, "phases.0.frozen=[\"router\"]"}).size(),
            2U);
  EXPECT_TRUE(warnings_of_weights({kNoWeights}).empty());
}

}  // namespace
}  // namespace moesaic
