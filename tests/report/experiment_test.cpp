// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/experiment.h"

#include <algorithm>

#include "moesaic/base/file.h"
#include "moesaic/report/runs.h"
#include "report/report_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using report_test::error_of;
using report_test::TempDir;

/// A file "tiny.json" and what comes of it.
class ExperimentFile {
 public:
  explicit ExperimentFile(const std::string& text = report_test::tiny_sweep()) {
    write_atomic(folder_ / "tiny.json", text);
  }
  std::string path() const { return (folder_ / "tiny.json").string(); }
  RunsConfig parsed(Scale scale = Scale::paper,
                    const std::vector<std::string>& overrides = {}) const {
    return parse<RunsConfig>(load_experiment(path(), scale, overrides).config);
  }
  /// The error without the folder's name.
  std::string error(const std::vector<std::string>& overrides = {}) const {
    std::string text = error_of([&] { parsed(Scale::paper, overrides); });
    const std::string prefix = path().substr(0, path().size() - 9);
    if (const auto at = text.find(prefix); at != std::string::npos) text.erase(at, prefix.size());
    return text;
  }

 private:
  TempDir folder_;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Experiments, TheShippedOnesAreSoundAtBothScales) {
  const std::vector<std::string> names = experiment_names();
  EXPECT_NE(std::find(names.begin(), names.end(), "quickstart"), names.end());
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  for (const std::string& name : names) {
    for (const Scale scale : {Scale::paper, Scale::quick}) {
      const Experiment experiment = load_experiment(name, scale);
      EXPECT_EQ(experiment.name, name);
      if (experiment.kind == "runs") {
        EXPECT_EQ(parse<RunsConfig>(experiment.config).name, name);
      } else {
        EXPECT_EQ(parse<ImageGridConfig>(experiment.config).name, name);
      }
    }
  }
}

TEST(Experiments, QuickstartIsTheSweepThatItsTableShows) {
  const auto config = parse<RunsConfig>(load_experiment("quickstart", Scale::paper).config);
  EXPECT_EQ(config.num_runs, 1);
  EXPECT_EQ(config.sweep.keep, (std::vector<int64_t>{16, 12, 8, 6, 4, 2}));
  EXPECT_EQ(
      config.sweep.criteria,
      (std::vector<std::string>{"router-norm-change", "router-magnitude", "magnitude", "random"}));
  EXPECT_EQ(config.sweep.exported->num_experts, 4);
  const std::vector<PhaseConfig> phases = parse<RunConfig>(config.train).phases;
  EXPECT_EQ(phases.front().name, "pretrain");
  EXPECT_EQ(phases.back().name, "finetune");
}

TEST(Experiments, AnUnknownNameGetsTheNearestOne) {
  EXPECT_EQ(error_of([] { load_experiment("quikstart", Scale::paper); }),
            "usage: unknown experiment 'quikstart'; did you mean 'quickstart'?");
}

TEST(Experiments, AFileThatIsMissingIsNamed) {
  EXPECT_THAT(error_of([] { load_experiment("/no/such.json", Scale::paper); }),
              HasSubstr("/no/such.json"));
}

TEST(Experiments, ARecipeIsToldWhichCommandTrainsIt) {
  const TempDir folder;
  const std::string recipe = (folder / "recipe.json").string();
  write_atomic(recipe, R"({"name": "first", "phases": [{"name": "train", "data": "mnist"}]})");
  EXPECT_EQ(error_of([&] { load_experiment(recipe, Scale::quick); }),
            "usage: reproduce: " + recipe +
                ": a recipe, not an experiment; train it by: moesaic train " + recipe);
}

TEST(Experiments, QuickChangesOnlyWhatItNames) {
  const ExperimentFile file;
  const RunsConfig paper = file.parsed(), quick = file.parsed(Scale::quick);
  const auto phases = parse<RunConfig>(paper.train).phases,
             quick_phases = parse<RunConfig>(quick.train).phases;
  EXPECT_EQ(quick.sweep.keep, (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(quick.sweep.recover->steps, 1);
  EXPECT_EQ(quick_phases[0].steps, 2);
  EXPECT_EQ(quick_phases[1].steps, phases[1].steps);
  EXPECT_EQ(paper.sweep.recover->steps, 3);
  EXPECT_EQ(paper.sweep.keep, (std::vector<int64_t>{4, 3, 2}));
}

TEST(Experiments, ErrorsOfQuickSettingsNameTheirLine) {
  const ExperimentFile file(
      replaced(report_test::tiny_sweep(), R"("recover.steps": 1,)", R"("recover.steps": "one",)"));
  EXPECT_THAT(error_of([&] { file.parsed(Scale::quick); }),
              AllOf(HasSubstr("tiny.json:24:"), HasSubstr("'recover.steps' must be an integer")));
}

TEST(Experiments, OverridesComeAfterQuick) {
  const RunsConfig config =
      ExperimentFile().parsed(Scale::quick, {"recover.steps=7", "train.seed=9"});
  EXPECT_EQ(config.sweep.recover->steps, 7);
  EXPECT_EQ(config.train.at("seed").as_int(), 9);
  EXPECT_EQ(config.sweep.keep, (std::vector<int64_t>{4, 2}));
}

TEST(Experiments, AnOverrideOfTheQuickScaleNamesTheSettingItself) {
  for (const Scale scale : {Scale::quick, Scale::paper}) {
    EXPECT_EQ(error_of([&] { ExperimentFile().parsed(scale, {"quick.recover.steps=7"}); }),
              "usage: argument 'quick.recover.steps=7': overrides come after the quick scale; give "
              "'recover.steps=7'");
  }
}

TEST(Experiments, WithoutAQuickScaleThatIsSaid) {
  const ExperimentFile file(replaced(report_test::tiny_sweep(), R"(,
  "quick": {"keep": [4, 2], "recover.steps": 1, "train.phases.pretrain.steps": 2})",
                                     ""));
  EXPECT_EQ(
      error_of([&] { file.parsed(Scale::quick); }),
      "usage: " + file.path() + ":1:1: the experiment has no quick scale; choose --scale paper");
  EXPECT_NO_THROW(file.parsed());
}

TEST(Experiments, ANameThatIsNoFolderIsRefused) {
  const TempDir folder;
  for (const std::string name : {"../mine", "a/b/c", "a\\nb", "/a", "a/", ".a", ""}) {
    write_atomic(folder / "x.json",
                 R"({"name": ")" + name + R"(", "kind": "runs", "description": "d"})");
    EXPECT_THAT(error_of([&] { load_experiment((folder / "x.json").string(), Scale::paper, {}); }),
                AllOf(HasSubstr("x.json:1:10: name '"), HasSubstr("may hold letters")))
        << name;
  }
}

TEST(Experiments, TheFormerKindOfThoseThatPruneIsReadAndWarnedOf) {
  const ExperimentFile file(replaced(report_test::tiny_sweep(), R"("kind": "runs", "num_runs": 1,)",
                                     R"("kind": "prune-sweep",)"));
  RunsConfig config;
  EXPECT_THAT(test::said_by([&] { config = file.parsed(); }),
              HasSubstr("'prune-sweep' is 'runs' now"));
  EXPECT_EQ(config.kind, "runs");
  EXPECT_EQ(config.num_runs, 1);
  EXPECT_EQ(config.sweep.keep.size(), 3U);
}

TEST(Experiments, TheFormerKindOfImageGridsIsReadAndWarnedOf) {
  const test::TempDir folder;
  write_atomic(folder / "x.json", R"({"name": "x", "kind": "samples", "description": "d",
                                      "data": "fashion-mnist", "images": [0], "columns": 3})");
  const std::string said = test::said_by([&] {
    const Experiment experiment = load_experiment((folder / "x.json").string(), Scale::paper, {});
    EXPECT_EQ(experiment.kind, "image_grid");
    EXPECT_EQ(parse<ImageGridConfig>(experiment.config).num_columns, 3);
  });
  EXPECT_THAT(said, AllOf(HasSubstr("the kind 'samples' is called 'image_grid' now"),
                          HasSubstr("'columns' is called 'num_columns' now")));
}

TEST(Experiments, ErrorsSayLineAndColumn) {
  const std::string text = report_test::tiny_sweep();
  EXPECT_EQ(ExperimentFile(replaced(text, "\"criteria\"", "\"criterias\"")).error(),
            "usage: tiny.json:19:3: unknown key 'criterias'; did you mean 'criteria'?");
  EXPECT_EQ(ExperimentFile(replaced(text, "[4, 3, 2]", "[4, 3.5, 2]")).error(),
            "usage: tiny.json:18:15: 'keep.1' must be an integer, found the number 3.5");
  EXPECT_EQ(ExperimentFile(replaced(text, "\"kind\": \"runs\"", "\"kind\": \"rums\"")).error(),
            "usage: tiny.json:3:11: 'kind' cannot be the string \"rums\"; "
            "did you mean 'runs'?");
  EXPECT_EQ(ExperimentFile(replaced(text, "\"steps\": 3,", "\"stepz\": 3,")).error(),
            "usage: tiny.json:20:66: unknown key 'stepz' in recover; did you mean 'steps'?");
  EXPECT_EQ(ExperimentFile("{\"name\": \"tiny\",\n \"kind\" 3}").error(),
            "usage: tiny.json:2:9: syntax error while parsing object separator - unexpected number "
            "literal; expected ':'");
}

TEST(Experiments, WhatDoesNotGoTogetherIsRefused) {
  const ExperimentFile file;
  const std::string one_phase =
      R"({"name": "p", "data": "two", "steps": 1, "optimizer": {"lr": 0.1}})";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"criteria=[\"randon\"]",
       "'criteria.0' cannot be the string \"randon\"; did you mean 'random'?"},
      {"recover.data=three",
       "recover.data is 'three', but the last phase of train was on 'two'; choose 'two'"},
      {"export.num_experts=1",
       "export is keep 1 by 'router-norm-change', which is not part of the sweep; choose "
       "export.num_experts=4, or export=null for none"},
      {"export.criterion=magnitude",
       "export is keep 2 by 'magnitude', which is not part of the sweep; choose "
       "export.criterion=router-norm-change, or export=null for none"},
      {"keep=[4, 2, 4]", "two rows are called 'keep4/router-norm-change'"},
      {"max_steps=3",
       "'max_steps' is not for pruned networks; set the steps of phases, such as "
       "train.phases.0.steps"},
      {"recover.on_entry.restore=pretrain",
       "recovery trains the pruned network as it is; leave out 'prune', 'upcycle' and 'restore'"},
      {R"(train.phases.1.on_entry.prune={"keep": 2, "criterion": "magnitude"})",
       "phases of train cannot prune, since the sweep prunes what they leave; leave it out"},
      {"criteria=[\"router-norm-change\", \"router-norm-change\"]",
       "two rows are called 'keep4/router-norm-change'"},
      {"train.phases=[" + one_phase + "]",
       "train.phases must pretrain and fine-tune; give two phases, or train.init"}};
  for (const auto& [change, problem] : cases) {
    EXPECT_EQ(file.error({change}), "usage: argument '" + change + "': " + problem);
  }
  EXPECT_EQ(file.error(), "no error");
  const ExperimentFile grid(
      replaced(report_test::tiny_sweep(), R"("keep": [4, 3, 2])", R"("rows": [{"name": "a"}])"));
  EXPECT_THAT(grid.error(), HasSubstr("is for pruned networks; give 'keep' too"));
}

TEST(Scale, ResultsOfTheTwoNeverMix) {
  EXPECT_EQ(default_output(report_test::experiment(Scale::paper)), "checkpoints/demo");
  EXPECT_EQ(default_output(report_test::experiment(Scale::quick)), "checkpoints/demo-quick");
}

}  // namespace
}  // namespace moesaic
