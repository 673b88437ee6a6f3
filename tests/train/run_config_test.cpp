// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_config.h"

#include "moesaic/base/path.h"
#include "moesaic/models/registry.h"
#include "moesaic/train/gradient_phase.h"
#include "support/matchers.h"
#include "support/warnings.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using train_test::config_of;
using train_test::error_of;
using train_test::four_phases;

TEST(RunConfig, ReadsPhasesAndKeepsDefaults) {
  const RunConfig config = config_of(four_phases());
  ASSERT_EQ(config.phases.size(), 4u);
  EXPECT_EQ(settings_of<GradientConfig>(config.phases[0]).optimizer.weight_decay, 0.05);
  EXPECT_TRUE(config.phases[1].on_entry.new_head);
  EXPECT_EQ(settings_of<GradientConfig>(config.phases[1]).optimizer.momentum, 0.9);
  EXPECT_EQ(config.phases[2].on_entry.prune->criterion, "router-norm-change");
  EXPECT_EQ(config.phases[3].epochs, 1);
  EXPECT_EQ(config.phases[3].trainable, std::vector<std::string>{".*"});
}

TEST(RunConfig, RoundTripsThroughJson) {
  const auto json = to_json(config_of(four_phases()));
  EXPECT_EQ(to_json(parse<RunConfig>(Value::from_json(json, "x"))).dump(), json.dump());
}

TEST(RunConfig, RefusesWhatDoesNotFitTogether) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"phases.0.epochs=2", "'epochs' and 'steps' exclude one another"},
      {"phases.recover.epochs=null", "'epochs' or 'steps' must be given"},
      {"phases.1.name=pretrain", "two phases are called 'pretrain'"},
      {"phases.1.name=../up", "letters, digits"},
      {"phases.1.name=.hidden", "not begin with '.'"},
      {"phases.1.name=step_3", "'step_'"},
      {"name=a/b", "letters, digits"},
      {"model=null", "'model' or 'init' must be given"},
      {"phases.0.trainable=[\"(\"]", "not a valid regular expression"},
      {"phases.0.optimizer.no_decay=[\"(\"]", "not a valid regular expression"},
      {"phases.0.optimizer.betas=[0.9]", "two numbers"},
      {"phases.0.aux_losses={\"importanse\": 1}", "did you mean 'importance'?"},
      {"phases.0.optimizer.name=adam", "'adam' has no weight decay; choose 'adamw'"},
      {"phases.0.optimizer.weight_decays=[{\"pattern\": \"w\", \"value\": 1}]",
       "'weight_decay' and 'weight_decays' exclude one another; give "},
      {"phases.1.optimizer.weight_decays=[{\"pattern\": \"(\", \"value\": 1}]",
       "not a valid regular expression"},
      {"phases.0.clip_value=1", "'clip_norm' and 'clip_value' exclude one another"},
      {"phases.0.gradient_accumulation_steps=3",
       "'phases.0.gradient_accumulation_steps=3': gradient_accumulation_steps 3 does not divide "
       "batch_size 4; choose 2"},
      {"phases.0.loss=softmaks", "did you mean 'softmax'?"},
      {"phases.0.frozen=[\"(\"]", "frozen: '(' is not a valid regular expression"},
      {"phases.0.gradient_scale=[{\"pattern\": \"(\", \"value\": 1}]",
       "gradient_scale: '(' is not a valid regular expression"},
      {"phases.0.schedule={\"end\": 0.1, \"end_lr\": 1e-5}",
       "'end' and 'end_lr' exclude one another"},
      {"phases.0.schedule={\"name\": \"constant\", \"end\": 0.1}", "choose cosine or linear"},
      {"phases.0.schedule={\"cooldown_steps\": 3}", "choose rsqrt"},
      {"precision=bf16", "bfloat16"},
      {"tf32=1", "tf32"},
      {"phases.0.optimizer.learning_rate=1", "did you mean 'lr'?"},
      {"phases.0.schedule.name=cosinus", "cosine"},
      {"phases.2.on_entry.prune={}", "missing"},
      {"phases.0.batch_size=0", "batch_size"},
      {"phases=[]", "phases"},
  };
  for (const auto& [change, wanted] : cases) {
    const std::string error = error_of([&] { config_of(four_phases(), {change}); });
    EXPECT_THAT(error, HasSubstr(wanted)) << change;
    EXPECT_THAT(error, ::testing::StartsWith("usage: ")) << change;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(RunConfig, TellsHowToTurnOffWhatAnArgumentExcludes) {
  const auto error = [](const std::vector<std::string>& changes) {
    return error_of([&] { config_of(four_phases(), changes); });
  };
  for (const auto& [change, remedy] : std::vector<std::pair<std::string, std::string>>{
           {"phases.0.epochs=2", "; give phases.0.steps=null too"},
           {"phases.recover.steps=5", "; give phases.3.epochs=null too"},
           {"phases.0.clip_value=1", "; give phases.0.clip_norm=0 too"},
           {"phases.0.optimizer.weight_decays=[{\"pattern\": \"w\", \"value\": 1}]",
            "; give phases.0.optimizer.weight_decay=0 too"},
           {"phases.0.schedule={\"end\": 0.1, \"end_lr\": 1e-5}", "; leave one out"}}) {
    EXPECT_THAT(error({change}), EndsWith(remedy)) << change;
    if (remedy.starts_with("; give ")) {
      const std::string other = remedy.substr(7, remedy.size() - 7 - 4);
      EXPECT_EQ(error({change, other}), "no error") << other;
    }
  }
}

TEST(RunConfig, NamesTheSettingsThatChanged) {
  const auto started = to_json(config_of(four_phases()));
  const auto changed = [&](const std::string& change) {
    const auto now = to_json(config_of(four_phases(), {change}));
    return error_of([&] { check_same_run(started, now, "run"); });
  };
  EXPECT_THAT(changed("phases.finetune.optimizer.lr=0.5"),
              HasSubstr("'phases.1.optimizer.lr' was 0.05 and is 0.5 now"));
  EXPECT_THAT(changed("seed=6"), HasSubstr("'seed' was 5"));
  EXPECT_THAT(changed("model.hidden_size=16"), HasSubstr("'model.hidden_size' was 8"));
  EXPECT_THAT(changed("phases.0.aux_losses.gshard=1"), HasSubstr("'phases.0.aux_losses.gshard'"));
  EXPECT_THAT(changed("phases.2.on_entry.prune=null"), HasSubstr("'phases.2.on_entry.prune'"));
  EXPECT_THAT(changed("model.classifier=gap"),
              AllOf(HasSubstr("'model.classifier' was"), HasSubstr("is \"gap\" now")));
  const auto both = to_json(config_of(four_phases(), {"seed=6", "phases.0.steps=7"}));
  EXPECT_EQ(error_of([&] { check_same_run(started, both, "run"); }),
            "usage: run: cannot resume with other settings: 'seed' was 5 and is 6 now, "
            "'phases.0.steps' was 6 and is 7 now; set back what changed or give another --out");
  EXPECT_THAT(error_of([&] { check_same_run(started, both, "run", "go away"); }),
              EndsWith("; set back what changed or go away"));
  for (const char* free :
       {"num_loader_threads=3", "checkpoint_every=7", "num_checkpoints=1", "data_changed=accept",
        "starved_expert_share=0.1", "starved_expert_steps=9"}) {
    EXPECT_EQ(changed(free), "no error") << free;
  }
}

TEST(RunConfig, GoesOnWithARunThatLacksLaterSettings) {
  const auto now = to_json(config_of(four_phases()));
  auto older = now;
  for (const char* key : {"tf32", "deterministic", "parallel"}) older.erase(key);
  for (auto& phase : older.at("phases")) {
    phase.erase("frozen");
    for (const char* key : {"orientation", "channels"}) phase.at("preprocess").erase(key);
  }
  EXPECT_EQ(error_of([&] { check_same_run(older, now, "run"); }), "no error");
  const auto rounded = to_json(config_of(four_phases(), {"tf32=true"}));
  EXPECT_THAT(error_of([&] { check_same_run(older, rounded, "run"); }),
              HasSubstr("settings: 'tf32' was false and is true now; set back"));
}

TEST(RunConfig, GoesOnWithARunWhoseNetworkLacksLaterSettings) {
  auto now = to_json(config_of(four_phases()));
  now["model"] = build_meta_model(Value::from_json(now.at("model"), "x"))->config();
  auto older = now;
  older.at("model").erase("representation_size");
  EXPECT_EQ(error_of([&] { check_same_run(older, now, "run"); }), "no error");
  older.at("model")["hidden_size"] = 16;
  EXPECT_THAT(error_of([&] { check_same_run(older, now, "run"); }),
              HasSubstr("'model.hidden_size' was 16 and is 8 now"));
}

TEST(RunConfig, GoesOnWithARunThatHasFormerKeys) {
  const auto now = to_json(
      config_of(four_phases(),
                {"phases.2.on_entry.prune.keep={\"count\": 2, \"exclude_blocks\": [1]}",
                 "phases.0.trainable=[\"head\"]", "best_metric=loss", "phases.1.num_samples=8"}));
  auto older = now;
  const auto rename = [](Json& settings, const char* key, const char* former) {
    settings[former] = settings.at(key);
    settings.erase(key);
  };
  rename(older, "best_metric", "best");
  rename(older, "num_loader_threads", "loader_threads");
  rename(older.at("model"), "num_classes", "classes");
  rename(older.at("parallel"), "num_replicas", "data");
  rename(older.at("parallel"), "expert_parallel_size", "experts");
  rename(older, "activation_checkpointing", "recompute");
  rename(older.at("phases").at(0), "trainable", "trains");
  rename(older.at("phases").at(1), "num_samples", "samples");
  Json& prune = older.at("phases").at(2).at("on_entry").at("prune");
  rename(prune, "num_calibration_images", "calibration_images");
  rename(prune.at("keep"), "exclude_blocks", "whole");
  prune["replace"] = "nothing";  // The former default.
  EXPECT_EQ(error_of([&] { check_same_run(older, now, "run"); }), "no error");
  older.at("phases").at(1)["samples"] = 9;
  EXPECT_THAT(error_of([&] { check_same_run(older, now, "run"); }),
              HasSubstr("'phases.1.num_samples' was 9 and is 8 now; set back"));
}

TEST(RunConfig, ReadsFormerKeysWithAWarning) {
  struct Spelling {
    std::string phase, run = R"("seed": 1)";  ///< Settings of the phase and of the run.
  };
  struct Case {
    Spelling former, present;
    size_t renamed;  ///< Number of former keys.
  };
  const std::vector<Case> cases = {
      {{R"("kind": "gradient")", R"("parallel": {"data": 3, "experts": 2})"},
       {R"("kind": "gradient")", R"("parallel": {"num_replicas": 3, "expert_parallel_size": 2})"},
       2},
      {{R"("kind": "ridge", "bias": 2, "flip": false)"},
       {R"("kind": "ridge", "max_bias": 2, "flip_signs": false)"},
       2},
      {{R"("kind": "spherical_sgd", "until_local": 0.5)"},
       {R"("kind": "spherical_sgd", "stop_alignment": 0.5)"},
       1},
      {{R"("kind": "pattern_sgd", "until_zero": false)"},
       {R"("kind": "pattern_sgd", "stop_at_zero_loss": false)"},
       1},
      {{R"("kind": "gradient", "accumulate": 4, "accumulate_order": "strided",
           "augment": {"shift": 3}, "stop": {"loss_rise": 0, "after_steps": 5})"},
       {R"("kind": "gradient", "gradient_accumulation_steps": 4, "micro_batch_order": "strided",
           "augment": {"max_shift": 3}, "stop": {"loss_rise": 0, "min_steps": 5})"},
       4},
      {{R"("kind": "gated_sgd", "loss": "l_log", "radius": 2)"},
       {R"("kind": "gated_sgd", "loss": "l_log", "max_gate_norm": 2)"},
       1},
  };
  for (const Case& item : cases) {
    const auto read = [](const Spelling& spelling) {
      return to_json(config_of(R"({"name": "r", "model": {"name": "latent-moe"}, "phases": [
          {"name": "a", "data": "d", "steps": 1, )" +
                               spelling.phase + "}], " + spelling.run + "}"));
    };
    const auto present = read(item.present);
    const testing::Warnings warnings;
    EXPECT_EQ(read(item.former), present);
    EXPECT_THAT(warnings.texts(), ::testing::SizeIs(item.renamed)) << item.former.phase;
    for (const std::string& text : warnings.texts()) EXPECT_THAT(text, HasSubstr(" is called "));
  }
}

TEST(RunConfig, GoesOnWithARunWhoseEpochsWereStoredAsABareNumber) {
  const auto now = to_json(config_of(four_phases(), {"evaluate_every=2 epochs"}));
  auto older = now;
  older["evaluate_every"] = 2;
  EXPECT_EQ(error_of([&] { check_same_run(older, now, "run"); }), "no error");
  older["evaluate_every"] = 3;
  EXPECT_THAT(error_of([&] { check_same_run(older, now, "run"); }),
              HasSubstr("'evaluate_every' was \"3 epochs\" and is \"2 epochs\" now"));
}

TEST(RunConfig, ShippedRecipesNameTheUnitOfEveryEvaluation) {
  int recipes = 0;
  for (const auto& file : fs::recursive_directory_iterator(resource("models"))) {
    if (file.path().extension() != ".json" || file.path().parent_path().filename() != "recipes") {
      continue;
    }
    const Value root = Document::from_file(file.path()).root();
    const Value* const every = root.find("evaluate_every");
    const bool bare = every != nullptr && every->kind() != Value::Kind::string;
    EXPECT_TRUE(!bare || every->as_int() == 0) << every->where() << ": " << every->described();
    ++recipes;
  }
  EXPECT_GT(recipes, 20);
}

TEST(RunConfig, HelpNamesEverySetting) {
  const std::string help = help_text(help_rows<RunConfig>());
  for (const char* key : {"phases.N.optimizer.weight_decay", "phases.N.on_entry.prune.keep",
                          "num_checkpoints", "phases.N.schedule.warmup_steps"}) {
    EXPECT_THAT(help, HasSubstr(key));
  }
}

TEST(RunConfig, PointsAtTheSettingThatIsWrong) {
  std::string text = four_phases();
  const auto replace = [&](const std::string& from, const std::string& to) {
    text = four_phases();
    text.replace(text.find(from), from.size(), to);
  };
  replace("\"importance\"", "\n\"importanc\"");
  EXPECT_THAT(error_of([&] { config_of(text); }),
              HasSubstr("recipe.json:11:1: unknown auxiliary loss 'importanc' in aux_losses"));
  replace("\"name\": \"finetune\"", "\n\"name\": \"step_1\"");
  EXPECT_THAT(error_of([&] { config_of(text); }), HasSubstr("recipe.json:12:9: name 'step_1'"));
  for (const char* change : {"phases.1.name=pretrain", "phases.0.epochs=2",
                             "phases.0.trainable=[\"(\"]", "phases.0.optimizer.betas=[0.9]"}) {
    EXPECT_THAT(error_of([&] { config_of(four_phases(), {change}); }),
                HasSubstr("usage: argument '" + std::string(change) + "': "));
  }
}

TEST(RunConfig, BoundsPatternsAndSizes) {
  const std::string brackets(20000, '(');
  EXPECT_THAT(
      error_of([&] { config_of(four_phases(), {"phases.0.trainable=[\"" + brackets + "\"]"}); }),
      HasSubstr("trainable: a pattern of 20000 characters; at most 1000"));
  for (const char* size : {"phases.0.batch_size", "phases.0.steps", "evaluate_batch_size"}) {
    EXPECT_THAT(error_of([&] { config_of(four_phases(), {size + std::string("=1e15")}); }),
                HasSubstr("must be between"));
  }
}

}  // namespace
}  // namespace moesaic
