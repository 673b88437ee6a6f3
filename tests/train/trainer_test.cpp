// SPDX-License-Identifier: Apache-2.0
// What a run does and leaves, and what it refuses.
#include "moesaic/train/trainer.h"

#include <torch/torch.h>

#include <limits>

#include "moesaic/checkpoint/store.h"
#include "moesaic/data/dataset.h"
#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using test::names_in;
using TrainerRun = test::InFolder;

/// A network without experts, so that it may diverge.
const std::vector<std::string> kDense = {"model.encoder.moe.layers=[]", "phases.2.on_entry={}",
                                         "phases.0.aux_losses={}"};

std::string refusal(const std::vector<std::string>& changes) {
  TempDir folder;
  const std::string error = error_of([&] { train(folder / "run", changes); });
  EXPECT_FALSE(fs::exists(folder / "run")) << "something was written";
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  return error;
}

TEST_F(TrainerRun, GoesThroughEveryKindOfPhase) {
  const TrainResult result = train(folder / "run", {"num_checkpoints=2"});
  EXPECT_EQ(result.steps, 12);
  EXPECT_EQ(result.signal, 0);
  ASSERT_TRUE(result.evaluation);
  EXPECT_EQ(
      names_in(folder / "run/checkpoints"),
      (std::vector<std::string>{"finetune", "pretrain", "prune", "recover", "step_11", "step_12"}));
  const auto pretrained = load_model(folder / "run/checkpoints/pretrain");
  const auto finetuned = load_model(folder / "run/checkpoints/finetune");
  const auto pruned = load_model(folder / "run/checkpoints/prune");
  EXPECT_EQ(pretrained->num_classes(), 3);
  EXPECT_EQ(finetuned->num_classes(), 2);
  EXPECT_EQ(pretrained->moe_blocks()[0].layer->kept().size(), 4u);
  EXPECT_EQ(pruned->moe_blocks()[0].layer->kept().size(), 2u);
  EXPECT_TRUE(torch::equal(finetuned->named_parameters()["head.weight"],
                           pruned->named_parameters()["head.weight"]));
  EXPECT_EQ(load_model(folder / "run/best")->num_classes(), 2);
}

TEST_F(TrainerRun, APruningThatSeesNoChangeIsWarnedOfOnce) {
  const std::string said = test::said_by(
      [&] { train(folder / "run", {"phases.prune.on_entry.prune.pretrained=finetune"}); });
  const std::string warning =
      "warning: prune: block 1: router-norm-change gives every expert 0, so the first ones are "
      "kept; check that the pretrained and the fine-tuned network differ\n";
  const size_t place = said.find(warning);
  ASSERT_NE(place, said.npos) << said;
  EXPECT_EQ(said.find("gives every expert", place + warning.size()), said.npos) << said;
  EXPECT_EQ(load_model(folder / "run/checkpoints/prune")->moe_blocks()[0].layer->kept(),
            (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(test::said_by([&] { train(folder / "other"); }).find("gives every expert"), said.npos);
}

TEST_F(TrainerRun, CheckpointsSayWhatTheyAre) {
  train(folder / "run");
  const Checkpoint checkpoint = load_checkpoint(folder / "run/checkpoints/prune");
  EXPECT_EQ(checkpoint.config["data"], "two");
  const InputSpec input = input_spec_of(checkpoint, *model_of(checkpoint));
  EXPECT_EQ(input.classes, (std::vector<std::string>{"class 0", "class 1"}));
  EXPECT_EQ(input.mean, std::vector<double>{0.4});
  EXPECT_EQ(input.input_size, (std::vector<int64_t>{1, 4, 4}));
  EXPECT_EQ(checkpoint.config["model"]["encoder"]["moe"]["kept_experts"]["1"].size(), 2u);
  EXPECT_EQ(checkpoint.config["run"],
            nlohmann::ordered_json::parse(read_text(folder / "run/config.json")));
  EXPECT_EQ(checkpoint.state["step"], 9);
  EXPECT_EQ(checkpoint.state["phase"], "prune");
  EXPECT_EQ(checkpoint.state["phase_complete"], true);
  const Checkpoint pretrain = load_checkpoint(folder / "run/checkpoints/pretrain");
  EXPECT_TRUE(pretrain.optimizer.contains("head.weight.exp_avg_sq"));
  const Checkpoint on_the_way = load_checkpoint(folder / "run/checkpoints/step_5");
  EXPECT_EQ(on_the_way.state["phase_state"]["epoch"], 1);
  EXPECT_EQ(on_the_way.state["phase_state"]["batch"], 1);
  EXPECT_EQ(on_the_way.state["phase_step"], 5);
}

TEST_F(TrainerRun, WritesMetricsOfEachKind) {
  train(folder / "run");
  std::map<std::string, int> kinds;
  const std::vector<Json> lines = metric_lines(folder / "run");
  for (const Json& line : lines) ++kinds[line["kind"]];
  EXPECT_EQ(kinds, (std::map<std::string, int>{{"train", 5}, {"eval", 5}, {"prune", 1}}));
  EXPECT_EQ(lines.at(0)["kind"], "eval");
  EXPECT_EQ(lines[0]["step"], 4);
  const Json& train_line = lines.at(1);
  EXPECT_EQ(train_line["step"], 5);
  EXPECT_EQ(train_line["epoch"], 1.25);
  for (const char* key :
       {"loss", "cross_entropy", "importance", "gshard", "accuracy", "grad_norm", "lr"}) {
    EXPECT_TRUE(train_line.contains(key)) << key;
  }
}

TEST_F(TrainerRun, LearnsATaskThatCanBeLearned) {
  const TrainResult result =
      train(folder / "run", {"seed=6", "phases.0.steps=150", "phases.1.steps=300",
                             "checkpoint_every=0", "phases.recover.epochs=20"});
  // Chance is 50 %. A network of width 8 does not learn from every seed, hence this one.
  EXPECT_GT(result.evaluation->metric("accuracy"), 80.0);
}

TEST_F(TrainerRun, BestIsTheFirstCheckpointWithTheHighestAccuracyOfTheLastPhase) {
  train(folder / "run", {"phases.recover.epochs=10"});
  double best = -1;
  int64_t step = 0;
  for (const Json& line : metric_lines(folder / "run", "eval")) {
    if (line["phase"] == "recover" && line["accuracy"] > best) {
      best = line["accuracy"];
      step = line["step"];
    }
  }
  EXPECT_EQ(load_checkpoint(folder / "run/best").state["step"], step);
  EXPECT_EQ(load_checkpoint(folder / "run/best").state["best_step"], step);
}

TEST_F(TrainerRun, TrainsOnlyWhatThePhaseNames) {
  train(folder / "run", {"phases.finetune.trainable=[\"^head\", \"router\"]"});
  const auto before = load_model(folder / "run/checkpoints/pretrain")->named_parameters();
  const auto after = load_model(folder / "run/checkpoints/finetune")->named_parameters();
  for (const auto& item : before) {
    if (item.key().starts_with("head")) continue;
    const bool changed = !torch::equal(item.value(), after[item.key()]);
    EXPECT_EQ(changed, item.key().find("router") != std::string::npos) << item.key();
  }
  EXPECT_TRUE(after["head.weight"].ne(0).any().item<bool>());
}

TEST_F(TrainerRun, StartsFromACheckpointWithOrWithoutItsModel) {
  train(folder / "first");
  const std::string init = "init=" + (folder / "first/checkpoints/finetune").string();
  const std::vector<std::string> one_phase = {
      init, "phases=[{\"name\": \"more\", \"data\": \"two\", \"steps\": 0}]"};
  const auto wanted = load_model(folder / "first/checkpoints/finetune")->named_parameters();
  for (const std::string model : {"model=null", "model.num_classes=2"}) {
    std::vector<std::string> changes = one_phase;
    changes.push_back(model);
    train(folder / model, changes);
    const auto found = load_model(folder / model)->named_parameters();
    for (const auto& item : wanted) EXPECT_TRUE(torch::equal(item.value(), found[item.key()]));
  }
  // With a new head the old one may have other classes, else not.
  train(folder / "head", {init, "model.num_classes=3", "phases.0.on_entry.new_head=true"});
  EXPECT_EQ(load_model(folder / "head/checkpoints/pretrain")->num_classes(), 3);
  const std::string error = error_of([&] { train(folder / "strict", {init}); });
  EXPECT_THAT(error, HasSubstr("\"on_entry\": {\"new_head\": true}"));
  const std::string unwritten = error_of([&] {
    train(folder / "strict", {init, "model=null", one_phase.back(), "phases.0.data=three"});
  });
  EXPECT_THAT(unwritten, HasSubstr("'three' has 3 classes, the model has 2; set \"on_entry\": "));
  EXPECT_THAT(unwritten, ::testing::EndsWith("true}"));  // No model's setting would do.
  EXPECT_FALSE(fs::exists(folder / "strict"));
}

TEST_F(TrainerRun, RefusesClassesThatDifferBeforeTraining) {
  EXPECT_THAT(refusal({"phases.finetune.on_entry.new_head=false"}),
              HasSubstr("phase 'finetune': 'two' has 2 classes, the model has 3; set \"on_entry\": "
                        "{\"new_head\": true} or model.num_classes=2"));
}

TEST_F(TrainerRun, RefusesToCompareWithAnotherNetworkBeforeTraining) {
  std::vector<std::string> wider = {"model.encoder.mlp_dim=12"};
  train(folder / "wider", wider);
  EXPECT_THAT(refusal({"phases.prune.on_entry.prune.pretrained=" + (folder / "wider").string()}),
              HasSubstr("is another network than the one to prune: "));
}

TEST_F(TrainerRun, RefusesWhatCannotWorkBeforeWritingAnything) {
  EXPECT_THAT(refusal({"phases.recover.data=four"}), HasSubstr("unknown dataset 'four'"));
  EXPECT_THAT(refusal({"model.image_size=8"}), HasSubstr("1 x 4 x 4"));
  EXPECT_THAT(refusal({"model.name=vmoo"}), HasSubstr("vmoe"));
  EXPECT_THAT(refusal({"phases.0.trainable=[\"heat\"]"}), HasSubstr("'heat'"));
  EXPECT_THAT(refusal({"phases.prune.on_entry.prune.pretrained=pretrian"}),
              HasSubstr("did you mean 'pretrain'?"));
  EXPECT_THAT(refusal({"phases.prune.on_entry.prune.pretrained=recover"}), HasSubstr("earlier"));
  EXPECT_THAT(refusal({"phases.prune.on_entry.prune.pretrained=\"\""}), HasSubstr("pretrained"));
  EXPECT_THAT(refusal({"phases.prune.on_entry.prune.criterion=magnitud"}),
              HasSubstr("did you mean 'magnitude'?"));
  EXPECT_THAT(refusal({"phases.prune.on_entry.prune.keep=2.5"}), StartsWith("usage: "));
  EXPECT_THAT(refusal({"init=/nowhere"}), HasSubstr("/nowhere"));
}

TEST_F(TrainerRun, RefusesADeviceThatThisBuildDoesNotHave) {
  for (const char* device : {"cuda", "tpu"}) {
    TrainerOptions options = options_for(folder / "run");
    options.device = device;
    const auto make = [&] { Trainer(config_of(four_phases()), options); };
    EXPECT_THAT(error_of(make), ::testing::AllOf(StartsWith("usage: "), HasSubstr("cpu")));
  }
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST_F(TrainerRun, RefusesAFolderThatHoldsSomething) {
  fs::create_directories(folder / "run");
  write_atomic(folder / "run/notes.txt", "mine");
  const std::string error = error_of([&] { train(folder / "run"); });
  EXPECT_THAT(error, ::testing::AllOf(StartsWith("usage: "), HasSubstr("pass another --out")));
  EXPECT_EQ(names_in(folder / "run"), std::vector<std::string>{"notes.txt"});
  train(folder / "whole");
  EXPECT_THAT(error_of([&] { train(folder / "whole"); }),
              HasSubstr("pass --resume to continue its run, or another --out"));
}

TEST_F(TrainerRun, RefusesAFolderThatIsInUse) {
  train(folder / "run");
  const LockFile lock(folder / "run");
  EXPECT_THAT(error_of([&] { train(folder / "run", {}, true); }), HasSubstr("in use by process"));
}

TEST_F(TrainerRun, StopsBeforeAnUpdateThatIsNotFinite) {
  std::vector<std::string> dense = kDense;
  dense.emplace_back("phases.0.optimizer.lr=1e30");
  const std::string error = error_of([&] { train(folder / "dense", dense); });
  EXPECT_THAT(error, HasSubstr("failure: phase 'pretrain', step "));
  EXPECT_THAT(error, HasSubstr("the last checkpoint is"));
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  for (const auto& item : load_model(folder / "dense")->named_parameters()) {
    EXPECT_TRUE(item.value().isfinite().all().item<bool>()) << item.key();
  }
  const std::string routed =
      error_of([&] { train(folder / "routed", {"phases.0.optimizer.lr=1e30"}); });
  EXPECT_THAT(routed, HasSubstr("failure: phase 'pretrain', step "));
  for (const std::string& text : {error, routed}) {
    EXPECT_THAT(text, HasSubstr(": training diverged: "));
    EXPECT_THAT(text, HasSubstr("; lower phases.pretrain.optimizer.lr (1e+30 now) or "
                                "phases.pretrain.clip_norm (1 now); "));
  }
}

TEST_F(TrainerRun, SaysThatTrainingDivergedWhereARouterFindsIt) {
  TrainerOptions options = options_for(folder / "run");
  options.on_step = [&](Model& model, int64_t step) {
    const torch::NoGradGuard no_grad;
    if (step == 2) model.named_parameters()["embedding.weight"].fill_(NAN);
    return true;
  };
  const std::vector<std::string> changes = {"checkpoint_every=0", "phases.0.clip_norm=0"};
  const std::string error =
      error_of([&] { Trainer(config_of(four_phases(), changes), options).run(); });
  EXPECT_THAT(error, StartsWith("failure: phase 'pretrain', step 3: training diverged: "));
  EXPECT_THAT(error, HasSubstr("; lower phases.pretrain.optimizer.lr (0.01 now) or set "
                               "phases.pretrain.clip_norm, e.g. to 1; there is no checkpoint"));
}

TEST_F(TrainerRun, SaysThatARunIsFinished) {
  train(folder / "run");
  EXPECT_THAT(test::said_by([&] { train(folder / "run", {}, true); }),
              HasSubstr("the run finished after 4 phases"));
}

TEST_F(TrainerRun, StopsAtImagesThatAreNotFinite) {
  TrainerOptions options = options_for(folder / "run");
  options.open = [](std::string_view name, std::string_view split) {
    DatasetInfo info = open_tiny(name, split)->info();
    info.std = {1e-45};
    return make_memory_dataset(info, std::vector<uint8_t>(16 * 12, 255),
                               {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1});
  };
  const std::string error =
      error_of([&] { Trainer(config_of(four_phases(), kDense), options).run(); });
  EXPECT_THAT(error,
              StartsWith("failure: phase 'pretrain', step 1: training diverged: loss is nan; "));
  EXPECT_THAT(error, HasSubstr("; there is no checkpoint yet"));
  EXPECT_FALSE(fs::exists(folder / "run/checkpoints/step_1"));
}

TEST_F(TrainerRun, WritesNoCheckpointOfParametersThatAreNotFinite) {
  const std::string error = error_of([&] {
    train(folder / "run", {"phases.0.clip_norm=0", "phases.0.schedule={}",
                           "phases.0.optimizer={\"name\": \"sgd\", \"lr\": 1e35}",
                           "phases.0.gradient_scale=[{\"pattern\": \".*\", \"value\": 1e10}]"});
  });
  EXPECT_THAT(error, StartsWith("failure: phase 'pretrain', step 1: training diverged: '"));
  EXPECT_THAT(error, HasSubstr("' holds NaN or infinity; lower phases.pretrain.optimizer.lr"));
  EXPECT_FALSE(fs::exists(folder / "run/checkpoints/step_1"));
}

TEST_F(TrainerRun, BestPassesOverMetricsThatAreNotFinite) {
  bool finite = false;
  TrainerOptions options = options_for(folder / "run");
  options.on_step = [&](Model&, int64_t step) {
    finite = step > 6;  // After the evaluations of steps 3 and 6.
    return true;
  };
  options.open = [&](std::string_view name, std::string_view split) {
    const bool train = split == "train";
    return make_stream_dataset(
        open_tiny(name, split)->info(), train ? 18 : 9,
        [&finite, train](int64_t first, int64_t count) {
          const double value = train || finite ? 1.0 : std::numeric_limits<double>::quiet_NaN();
          return DatasetInputs{
              .values_NCHW = torch::full({count, 1, 4, 4}, value, torch::kFloat),
              .labels_N = torch::arange(first, first + count, torch::kLong).remainder(3)};
        });
  };
  const RunConfig config =
      config_of(four_phases(), {"best_metric=loss", "model.encoder.moe.layers=[]",
                                "phases=[{\"name\": \"only\", \"data\": \"three\", "
                                "\"batch_size\": 6, \"epochs\": 4}]"});
  const std::string log = test::said_by([&] { Trainer(config, options).run(); });
  const std::string warning = "only, step 3: test loss is not finite";
  EXPECT_THAT(log, HasSubstr(warning));
  EXPECT_EQ(log.find("is not finite", log.find(warning) + warning.size()), std::string::npos);
  EXPECT_GE(load_checkpoint(folder / "run/best").state["best_step"], 9);
}

TEST_F(TrainerRun, ReadsNoOptimizerOfACompletePhase) {
  train(folder / "whole");
  const auto resume_with_damage_at = [&](int64_t step) {
    const fs::path run = folder / std::to_string(step);
    copy_killed_after(folder / "whole", step, run);
    for (int64_t i = 1; i < step; ++i) fs::remove_all(run / "checkpoints" / step_name(i));
    const fs::path file = run / "checkpoints" / step_name(step) / "optimizer.safetensors";
    write_atomic(file, std::string_view(std::string(fs::file_size(file), 'x')));
    train(run, {}, true);
    expect_equal_bits(folder / "whole", run);
  };
  resume_with_damage_at(6);  // The end of the first phase.
  EXPECT_THAT(error_of([&] { resume_with_damage_at(5); }),
              HasSubstr("its only checkpoint of a step is corrupt"));
}

TEST_F(TrainerRun, DescribesARunWithoutStartingIt) {
  const RunConfig config = config_of(four_phases());
  DatasetCache datasets(open_tiny);
  const auto model = RunStart(config).model();
  const auto phases = plan_phases(config, *model, datasets);
  ASSERT_EQ(phases.size(), 4u);
  EXPECT_EQ(phases[0].steps_per_epoch, 4);
  EXPECT_EQ(phases[3].steps, 3);
  EXPECT_EQ(phases[1].num_outputs, 2);
  EXPECT_EQ(phases[0].num_trained_parameters, model->num_parameters());
  const std::string text = describe_run(config, *model, phases);
  for (const char* part :
       {"tiny", "vmoe", "parameters", "FLOPs/image", "save every 1 step, evaluate every 1 epoch",
        "pretrain", "new head", "keep 0.5 by router-norm-change"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST_F(TrainerRun, APartFollowsAScheduleOfItsOwn) {
  const auto weights = [](const std::vector<std::string>& changes) {
    const TempDir folder;
    train(folder / "run", changes);
    return read_text(folder / "run/checkpoints/finetune/model.safetensors");
  };
  const std::string own = R"("schedule": {"name": "cosine", "period": 2})";
  const auto everything = [](const std::string& schedule) {
    return R"(phases.finetune.optimizers=[{"parameters": ["."], "optimizer": {"name": "sgd", "lr": 0.05}, )" +
           schedule + "}]";
  };
  const std::string phase = "phases.finetune.schedule={\"name\": \"linear\"}";
  const std::string wanted =
      weights({R"(phases.finetune.schedule={"name": "cosine", "period": 2})"});
  EXPECT_EQ(weights({phase, everything(own)}), wanted);
  EXPECT_NE(weights({phase, everything(R"("schedule": null)")}), wanted);
}

}  // namespace
}  // namespace moesaic
