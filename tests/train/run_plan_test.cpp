// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "moesaic/base/process.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/models/vmoe/vmoe.h"
#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using train_test::config_of;
using train_test::error_of;
using train_test::four_phases;

std::vector<PhasePlan> plan_tiny(const std::vector<std::string>& changes = {}) {
  const RunConfig config = config_of(four_phases(), changes);
  DatasetCache datasets(train_test::open_tiny);
  return plan_phases(config, *RunStart(config).model(), datasets);
}

std::string plan_refusal(const std::vector<std::string>& changes) {
  return error_of([&] { plan_tiny(changes); });
}

std::string said_of(const std::vector<std::string>& changes) {
  return test::said_by([&] { plan_tiny(changes); });
}

std::string router_by_experts(int64_t tokens) {
  return R"(model.encoder.moe.router={"name": "NoisyTopItemsPerExpertRouter",
                                      "num_selected_tokens": )" +
         std::to_string(tokens) + "}";
}

TEST(RunPlan, CountsWhatEachPhaseReallyTrains) {
  const std::vector<PhasePlan> phases = plan_tiny();
  EXPECT_EQ(phases[1].num_trained_parameters,
            phases[0].num_trained_parameters - (8 + 1));  // a class less
  const int64_t expert = 2 * 8 * 8 + 8 + 8;
  EXPECT_EQ(phases[2].num_trained_parameters, phases[1].num_trained_parameters - 2 * expert);
  EXPECT_EQ(phases[3].num_trained_parameters, phases[2].num_trained_parameters);
}

TEST(RunPlan, FindsWhatAStepWouldRefuse) {
  EXPECT_THAT(plan_refusal({"phases.0.augment.max_shift=100"}),
              AllOf(StartsWith("usage: argument 'phases.0.augment.max_shift=100': "),
                    HasSubstr("choose 0 to 3")));
  EXPECT_THAT(plan_refusal({"model.encoder.moe.group_size=7"}),
              AllOf(StartsWith("usage: argument 'model.encoder.moe.group_size=7': "),
                    HasSubstr("must divide the 20 tokens of a batch"),
                    HasSubstr("; choose a batch_size that is a multiple of ")));
  EXPECT_EQ(plan_refusal({"model.encoder.moe.group_size=10"}), "no error");
  EXPECT_EQ(plan_refusal({"model.encoder.moe.group_size=7", "phases.0.aux_losses={}"}), "no error");
}

TEST(RunPlan, ANetworkThatReroutesTakesNoOtherReplacement) {
  const std::string reroutes = "model.encoder.moe.router.pruned_selection=reroute",
                    replaces = "phases.prune.on_entry.prune.replace=";
  EXPECT_EQ(plan_refusal({reroutes}), "no error");
  EXPECT_EQ(plan_refusal({reroutes, replaces + "reroute"}), "no error");
  EXPECT_EQ(plan_refusal({replaces + "nothing"}), "no error");
  EXPECT_THAT(plan_refusal({reroutes, replaces + "nothing"}),
              AllOf(StartsWith("usage: argument '" + replaces + "nothing': phase 'prune': block "),
                    EndsWith(" reroutes tokens of removed experts, so 'nothing' cannot replace "
                             "their outputs; choose the replacement 'reroute'")));
}

TEST(RunPlan, ABatchOfMoreThanThereIsIsSaidToBeAll) {
  EXPECT_THAT(said_of({"phases.0.batch_size=4"}), Not(HasSubstr("batch_size")));
  const std::vector<std::string> large = {"phases.0.batch_size=4000", "phases.0.aux_losses={}"};
  EXPECT_THAT(said_of(large),
              HasSubstr("argument 'phases.0.batch_size=4000': phase 'pretrain': batch_size 4000 is "
                        "more than 'three' has, a batch is all 18 examples"));
  EXPECT_EQ(plan_tiny(large)[0].batch_size, 18);
}

TEST(RunPlan, SamplesAreNoMoreThanTheDataHas) {
  const PhasePlan plan =
      plan_tiny({"phases.0.num_samples=7", "phases.0.batch_size=2", "phases.0.aux_losses={}"})[0];
  EXPECT_EQ(plan.num_images, 7);
  EXPECT_EQ(plan.steps_per_epoch, 3);
  EXPECT_THAT(
      plan_refusal({"phases.0.num_samples=19"}),
      HasSubstr("argument 'phases.0.num_samples=19': phase 'pretrain': 19 samples are more than "
                "the 18 of 'three'"));
}

TEST(RunPlan, MissingFilesNameTheirArgumentToo) {
  const RunConfig config = config_of(four_phases(), {"phases.0.data=elsewhere"});
  DatasetCache datasets(
      [](std::string_view name, std::string_view) -> std::shared_ptr<const Dataset> {
        fail("dataset '{}': files not found", name);
      });
  EXPECT_EQ(error_of([&] { plan_phases(config, *RunStart(config).model(), datasets); }),
            "failure: argument 'phases.0.data=elsewhere': dataset 'elsewhere': files not found");
}

TEST(RunPlan, InputsThatAreNoImagesAreNotAugmented) {
  const std::string text = R"({"name": "a", "model": {"name": "cluster-moe", "router": {}},
      "phases": [{"name": "train", "data": "clusters-figure1", "batch_size": 16, "steps": 1}]})";
  const auto refusal = [&](const std::vector<std::string>& changes) {
    return error_of([&] {
      const RunConfig config = config_of(text, changes);
      DatasetCache datasets(open_dataset);
      plan_phases(config, *RunStart(config).model(), datasets);
    });
  };
  EXPECT_EQ(refusal({}), "no error");
  EXPECT_THAT(refusal({"phases.0.augment.flip=true"}),
              AllOf(StartsWith("usage: argument 'phases.0.augment.flip=true'"),
                    HasSubstr("are not images")));
}

TEST(RunPlan, ExpertsCannotChooseMoreThanAGroupHolds) {
  const std::string plain = "phases.0.aux_losses={}", groups = "model.encoder.moe.group_size=5";
  EXPECT_EQ(plan_refusal({router_by_experts(5), groups, plain}), "no error");
  EXPECT_THAT(plan_refusal({router_by_experts(10), groups, plain}),
              AllOf(StartsWith("usage: argument 'model.encoder.moe.group_size=5': "),
                    HasSubstr("cannot select 10 of the 5 tokens of a group")));
}

TEST(RunPlan, EvaluationsLastBatchMustSufficeToo) {
  // Two of the 9 images of 5 tokens make a group; the last one is left over.
  std::vector<std::string> changes = {router_by_experts(8), "model.encoder.moe.group_size=10",
                                      "phases.0.aux_losses={}", "evaluate_batch_size=2"};
  EXPECT_THAT(plan_refusal(changes), HasSubstr("cannot select 8 of the 5 tokens of a group"));
  for (const char* phase : {"0", "1", "2", "3"}) {
    changes.push_back(std::string("phases.") + phase + ".evaluate=false");
  }
  EXPECT_EQ(plan_refusal(changes), "no error");
}

TEST(RunPlan, RefusesLossesThatWouldBeZero) {
  EXPECT_THAT(plan_refusal({"model.encoder.moe.router.noise_std=0"}),
              AllOf(StartsWith("usage: argument 'model.encoder.moe.router.noise_std=0': phase "),
                    HasSubstr("aux_losses.load needs noise")));
  EXPECT_THAT(plan_refusal({"phases.finetune.aux_losses={\"load\": 1}",
                            "model.encoder.moe.router.noise_std=0", "phases.0.aux_losses={}"}),
              HasSubstr("phase 'finetune': aux_losses.load needs noise"));
  const std::string chosen = router_by_experts(5);
  for (const std::string name : {"gshard", "importance", "load", "switch_balance"}) {
    const std::string change = "phases.0.aux_losses={\"" + name + "\": 1}";
    EXPECT_THAT(plan_refusal({chosen, "model.encoder.moe.group_size=5", change}),
                AllOf(StartsWith("usage: argument '"),
                      HasSubstr("aux_losses." + name + " balances tokens that choose")));
  }
  EXPECT_THAT(
      plan_refusal({R"(model.encoder.moe.router={"name": "adaptive", "gate": "one"})",
                    "phases.0.aux_losses={\"importance\": 1}"}),
      HasSubstr("aux_losses.importance balances tokens that choose, but here a threshold does"));
  EXPECT_EQ(plan_refusal({chosen, "model.encoder.moe.group_size=5",
                          "phases.0.aux_losses={\"router_z\": 1}"}),
            "no error");
}

TEST(RunPlan, LossesMustBeThoseOfAnEnsembleWhereThereIsOne) {
  for (const std::string loss : {"softmax", "sigmoid"}) {
    const std::string change = "phases.finetune.loss=ensemble_" + loss;
    EXPECT_THAT(plan_refusal({change}),
                AllOf(StartsWith("usage: argument '" + change + "': phase 'finetune': "),
                      HasSubstr("the model is one network"), EndsWith("choose '" + loss + "'")));
  }
  std::vector<std::string> changes = {"model.name=e3", "model.encoder.moe.ensemble_size=2",
                                      "phases.prune.on_entry.prune=null"};
  EXPECT_THAT(plan_refusal(changes),
              AllOf(StartsWith("usage: argument 'model.encoder.moe.ensemble_size=2': "),
                    HasSubstr("an ensemble of 2"), EndsWith("choose 'ensemble_softmax'")));
  for (const char* phase : {"0", "1", "2", "3"}) {
    changes.push_back(fmt::format("phases.{}.loss=ensemble_sigmoid", phase));
  }
  EXPECT_EQ(plan_refusal(changes), "no error");
}

TEST(RunPlan, WarnsOfAWarmUpThatOutlastsThePhase) {
  const std::string change = "phases.pretrain.schedule.warmup_steps=";
  EXPECT_EQ(said_of({change + "6"}), "");
  const std::string said = said_of({change + "10"});
  EXPECT_THAT(said,
              HasSubstr("argument '" + change +
                        "10': phase 'pretrain': 10 warm-up steps are "
                        "more than the phase's 6: of the learning rate 0.01 the phase reaches "
                        "0.005"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  EXPECT_EQ(said_of({"phases.prune.schedule.warmup_steps=10"}), "");  // no step, no rate
}

TEST(RunPlan, InitMustBeThereBeforeAnythingIsRead) {
  const test::TempDir folder;
  const std::string change = "init=" + (folder / "nowhere").string();
  TrainerOptions options = train_test::options_for(folder / "run");
  options.open = [](std::string_view, std::string_view) -> std::shared_ptr<const Dataset> {
    throw std::logic_error("data was read");
  };
  const auto refusal = [&](const std::string& init) {
    return error_of([&] { Trainer(config_of(four_phases(), {init}), options); });
  };
  EXPECT_THAT(refusal(change), AllOf(StartsWith("usage: argument '" + change + "': init '"),
                                     HasSubstr("is not there"), Not(HasSubstr("\n"))));
  std::filesystem::create_directory(folder / "empty");
  EXPECT_THAT(refusal("init=" + (folder / "empty").string()),
              AllOf(StartsWith("usage: argument 'init="), HasSubstr("neither a checkpoint")));
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST(RunPlan, PatternsMustFindAParameter) {
  for (const std::string change :
       {"phases.0.frozen=[\"heat\"]",
        "phases.0.gradient_scale=[{\"pattern\": \"heat\", \"value\": 2}]",
        "phases.1.optimizer.weight_decays=[{\"pattern\": \"heat\", \"value\": 2}]"}) {
    EXPECT_THAT(plan_refusal({change}), AllOf(StartsWith("usage: argument '" + change + "': "),
                                              HasSubstr("has 'heat', which matches no parameter")));
  }
  EXPECT_THAT(plan_refusal({"phases.0.frozen=[\"heat\"]"}),
              EndsWith("; the nearest are head.weight, head.bias, embedding.bias"));
  EXPECT_THAT(plan_refusal({"phases.0.frozen=[\".*\"]"}),
              HasSubstr("frozen covers all that trainable selects"));
  const auto phases = plan_tiny({"phases.0.frozen=[\"head\"]"});
  EXPECT_EQ(phases[0].num_trained_parameters, plan_tiny()[0].num_trained_parameters - 3 * (8 + 1));
}

// Else the router's optimizer would move experts without a word.
TEST(RunPlan, PatternsOfOptimizersMustFindAParameter) {
  const auto parts = [](const std::string& patterns, const std::string& optimizer) {
    return R"(phases.0.optimizers=[{"parameters": ["^head"], "optimizer": {}}, {"parameters": )" +
           patterns + R"(, "optimizer": )" + optimizer + "}]";
  };
  EXPECT_EQ(plan_refusal({parts(R"(["router"])", "{}")}), "no error");
  EXPECT_THAT(plan_refusal({parts(R"(["router", "^blocsk"])", "{}")}),
              AllOf(StartsWith("usage: argument 'phases.0.optimizers="),
                    HasSubstr("phase 'pretrain': optimizers.1.parameters has '^blocsk', which "
                              "matches no parameter; the nearest are blocks.0."),
                    Not(HasSubstr("\n"))));
  const std::string decays = R"({"weight_decays": [{"pattern": "heat", "value": 2}]})";
  EXPECT_THAT(
      plan_refusal({parts(R"(["router"])", decays)}),
      HasSubstr("optimizers.1.optimizer.weight_decays has 'heat', which matches no parameter"));
}

TEST(RunPlan, ACooldownMustFitIntoThePhase) {
  const std::string schedule =
      "phases.0.schedule={\"name\": \"rsqrt\", \"warmup_steps\": 2, \"cooldown_steps\": ";
  EXPECT_EQ(plan_refusal({schedule + "4}"}), "no error");
  EXPECT_THAT(plan_refusal({schedule + "5}"}), HasSubstr("more than the phase's 6"));
}

TEST(RunPlan, PruningTwiceIsCheckedAgainstWhatTheFirstLeaves) {
  const std::string again = "phases.recover.on_entry.prune={\"criterion\": \"random\", \"keep\": ";
  EXPECT_THAT(plan_refusal({again + "3}"}), HasSubstr("cannot keep 3 experts, it has 2"));
  EXPECT_EQ(plan_refusal({again + "2}"}), "no error");
  EXPECT_EQ(plan_refusal({again + "{\"1\": [1, 3]}}"}),
            "no error");  // which ones stay is not known yet
}

TEST(RunPlan, SaysWhereTheSettingStands) {
  const std::string prune = "phases.prune.on_entry.prune.";
  for (const std::string& change :
       {std::string("phases.recover.data=four"), prune + "criterion=router-norm",
        prune + "pretrained=pretrian", prune + "keep=half", prune + "keep=true",
        std::string("model.num_classes=11"), std::string("model.classes=11"),
        std::string("phases.0.trainable=[\"heat\"]")}) {
    EXPECT_THAT(plan_refusal({change}), StartsWith("usage: argument '" + change + "': ")) << change;
  }
  EXPECT_THAT(plan_refusal({"model.image_size=8"}),
              StartsWith("usage: argument 'model.image_size=8'"));
  EXPECT_THAT(plan_refusal({"phases.finetune.on_entry.new_head=false"}),
              StartsWith("usage: recipe.json:"));
}

TEST(RunPlan, AModelThatCannotBeTrainedHereIsRefusedBeforeItIsBuilt) {
  EXPECT_THAT(
      plan_refusal({"model.encoder.mlp_dim=1048576", "model.encoder.moe.num_experts=65536"}),
      HasSubstr("training a model of"));
}

TEST(RunPlan, MemoryCountsTheOptimizersOfParts) {
  // Weights and gradients fit, with the two moments of the experts they do not.
  const double filters = 0.3 * memory_limit() / sizeof(float) / 65537;
  const std::string run = fmt::format(R"({{"name": "large",
      "model": {{"name": "cluster-moe", "num_experts": 1, "num_filters": {}, "width": 65536,
                 "router": {{}}}},
      "phases": [{{"name": "train", "data": "clusters-setting1", "steps": 1, "batch_size": 8,
                   "optimizer": {{"name": "sgd", "momentum": 0}},
                   "optimizers": [{{"parameters": ["^moe.experts"],
                                    "optimizer": {{"name": "adam"}}}}]}}]}})",
                                      2 * static_cast<int64_t>(filters / 2));
  EXPECT_THAT(error_of([&] { RunStart(config_of(run)).model(); }),
              AllOf(StartsWith("usage: recipe.json:"), HasSubstr("by sgd, adam needs")));
}

TEST(RunPlan, InitialWeightsMayBeOfImagesOfAnotherSize) {
  const test::TempDir folder;
  RunConfig config = config_of(four_phases(), {"model.image_size=8"});
  const auto source = RunStart(config).model();
  save_checkpoint(folder / "from", {.config = {{"model", source->config()}},
                                    .state = {{"step", 0}},
                                    .model = state_of(*source),
                                    .optimizer = {}});
  config = config_of(four_phases(), {"seed=6", "init=" + (folder / "from").string()});
  const auto model = RunStart(config).model();
  const TensorMap from = state_of(*source), to = state_of(*model);
  EXPECT_TRUE(
      torch::equal(to.at("position_embedding"), vit_zoom(from.at("position_embedding"), 5)));
  for (const char* name : {"embedding.weight", "blocks.1.moe.experts.w1", "head.weight"}) {
    EXPECT_TRUE(torch::equal(to.at(name), from.at(name))) << name;
  }
  // Nothing says what the outputs of the checkpoint are called.
  DatasetCache datasets(train_test::open_tiny);
  EXPECT_THAT(
      test::said_by([&] { plan_phases(config, *model, datasets); }),
      HasSubstr("phase 'pretrain': the network has no class names: its outputs are assumed to "
                "be the classes of 'three', in their order"));
  EXPECT_THAT(said_of({}), Not(HasSubstr("has no class names")));
  config =
      config_of(four_phases(), {"model.encoder.mlp_dim=16", "init=" + (folder / "from").string()});
  EXPECT_THAT(error_of([&] { RunStart(config).model(); }), HasSubstr("the shapes differ"));
}

}  // namespace
}  // namespace moesaic
