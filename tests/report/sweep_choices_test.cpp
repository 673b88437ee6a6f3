// SPDX-License-Identifier: Apache-2.0
// Which layers keep how many experts in a sweep.
#include "moesaic/base/file.h"
#include "moesaic/checkpoint/store.h"
#include "report/sweep_fixture.h"
#include "support/matchers.h"

namespace moesaic::sweep_test {
namespace {

using SweepChoices = SweepRuns;

std::vector<std::string> texts_of(const std::vector<std::string>& changes) {
  std::vector<std::string> texts;
  for (const SweepSize& size : sweep_plan(config_of(changes)).sizes) texts.push_back(size.text);
  return texts;
}

std::string refusal_of_sizes(const std::vector<std::string>& changes) {
  return error_of([&] { texts_of(changes); });
}

const std::string kDenseSweep = "train.model.encoder.moe.layers=[]";
const std::string kUpcycled = R"("upcycle": {"num_experts": 4, "layers": [1]})";

TEST_F(SweepChoices, RefusesANetworkWithoutExpertsBeforeItTrains) {
  const auto phases = [](const std::string& entry) {
    return R"(train.phases=[
      {"name": "dense", "data": "two", "batch_size": 6, "steps": 3, "optimizer": {"lr": 0.02}},
      {"name": "last", "data": "two", "batch_size": 6, "steps": 3, "optimizer": {"lr": 0.02},
       "on_entry": {)" +
           entry + "}}]";
  };
  EXPECT_THAT(refusal(out, {kDenseSweep, phases("")}),
              HasSubstr("the network has no experts to prune; give it some by train.model, or by "
                        "on_entry.upcycle of a phase"));
  EXPECT_THAT(refusal(out, {kDenseSweep, phases(kUpcycled)}),
              HasSubstr("criterion 'router-norm-change' compares with the network that the last "
                        "phase begins with, which has no experts; upcycle in an earlier phase"));
  EXPECT_FALSE(fs::exists(out / "seed5"));
}

TEST_F(SweepChoices, ThePlanFollowsARestoredPhase) {
  const auto phases = [&](const std::string& last) {
    return R"(train.phases=[
      {"name": "dense", "data": "two", "batch_size": 6, "steps": 1, "optimizer": {"lr": 0.02}},
      {"name": "mixture", "data": "two", "batch_size": 6, "steps": 1, "optimizer": {"lr": 0.02},
       "on_entry": {)" +
           kUpcycled + R"(}},
      {"name": "last", "data": "two", "batch_size": 6, "steps": 1, "optimizer": {"lr": 0.02},
       "on_entry": {"restore": "dense")" +
           last + "}}]";
  };
  EXPECT_EQ(texts_of({kDenseSweep, "export=null", R"(criteria=["random"])", "keep=[2]",
                      phases(", " + kUpcycled)}),
            (std::vector<std::string>{"4 of 4", "2 of 4"}));
  EXPECT_THAT(refusal_of_sizes({kDenseSweep, phases("")}),
              HasSubstr("the network has no experts to prune"));
  EXPECT_THAT(refusal_of_sizes({kDenseSweep, phases(", " + kUpcycled)}),
              HasSubstr("compares with the network that the last phase begins with"));
}

TEST_F(SweepChoices, SetChangesPhasesOfTheRunThatIsPruned) {
  const std::string phases = R"(train.phases=[
      {"name": "mixture", "data": "two", "batch_size": 6, "steps": 1, "optimizer": {"lr": 0.02},
       "on_entry": {"upcycle": {"num_experts": 4, "layers": [1]}}},
      {"name": "last", "data": "two", "batch_size": 6, "steps": 1, "optimizer": {"lr": 0.02}}])";
  const auto texts = [&](const std::string& set) {
    return texts_of({kDenseSweep, "keep=[2]", "export=null", phases,
                     "set={\"phases.mixture.on_entry.upcycle." + set + "}"});
  };
  EXPECT_EQ(texts(R"(num_experts": 6)"), (std::vector<std::string>{"6 of 6", "2 of 6"}));
  EXPECT_EQ(texts(R"(gate": "softmax_all")"), (std::vector<std::string>{"4 of 4", "2 of 4"}));
  EXPECT_THAT(error_of([&] { texts(R"(experts": 6)"); }), HasSubstr("unknown key 'experts'"));
  EXPECT_THAT(
      refusal_of_sizes({"train.seed=3", R"(set={"seed": 4})"}),
      HasSubstr("argument 'train.seed=3': no effect, since the experiment's 'set' sets this"));
}

TEST_F(SweepChoices, TheFigureDrawsSixCriteriaOrThoseItIsTold) {
  const auto plotted = [&](const std::vector<std::string>& changes) {
    return sweep_plan(config_of(changes)).plotted;
  };
  const std::string seven =
      R"(criteria=["random", "aimer", "reap", "man", "msan", "load", "gate"])";
  EXPECT_THAT(plotted({"export=null", seven}),
              ElementsAre("random", "aimer", "reap", "man", "msan", "load"));
  EXPECT_THAT(plotted({"export=null", seven, R"(plotted_criteria=["gate", "frequency", "man"])"}),
              ElementsAre("gate", "man"))
      << "frequency is no part of the sweep";
  EXPECT_THAT(error_of([&] { plotted({R"(plotted_criteria=["rap"])"}); }), HasSubstr("reap"));
}

TEST_F(SweepChoices, ExpertsOfAnEnsembleAreCountedByMember) {
  const std::vector<std::string> changes = {"keep=[2]",
                                            "export=null",
                                            "criteria=[\"random\"]",
                                            "train.model.name=e3",
                                            "train.model.encoder.moe.ensemble_size=2",
                                            kTwoLayers,
                                            "train.model.encoder.moe.router.num_selected_experts=1",
                                            "train.phases.pretrain.loss=ensemble_softmax",
                                            "train.phases.finetune.loss=ensemble_softmax",
                                            "recover.loss=ensemble_softmax",
                                            R"(per_layer=[{"name": "half", "keep": {"0": 1}}])"};
  EXPECT_EQ(run(out, changes).networks(), 2u);
  EXPECT_EQ(texts_of(changes), (std::vector<std::string>{"2 of 2", "half (1, 2)"}));
}

TEST_F(SweepChoices, ExcludedBlocksKeepTheirExperts) {
  run(out, {"keep=[2]", "exclude_blocks=[1]", kTwoLayers});
  const auto blocks = load_model(first / "keep2-random")->moe_blocks();
  EXPECT_EQ(blocks[0].layer->kept().size(), 2u);
  EXPECT_EQ(blocks[1].layer->kept().size(), 4u);
}

TEST_F(SweepChoices, ChoicesByLayerStandBesideNumbers) {
  const std::string choices = R"(per_layer=[{"name": "half_of-1", "keep": {"1": 2}},
    {"name": "ids", "keep": {"0": [0, 3], "1": 3}},
    {"name": "but-0", "keep": {"count": 2, "exclude_blocks": [0]}}])";
  const std::vector<std::string> changes = {"keep=[4, 2]", "export=null", kTwoLayers, choices};
  const Outcome outcome = run(out, changes);
  EXPECT_EQ(texts_of(changes), (std::vector<std::string>{"4 of 4", "2 of 4", "half_of-1 (4, 2)",
                                                         "ids (2, 3)", "but-0 (4, 2)"}));
  ASSERT_EQ(outcome.networks(), 5u * 2u);
  const auto kept = [&](const char* name) {
    std::vector<size_t> counts;
    for (const MoEBlock& block : load_model(first / name)->moe_blocks()) {
      counts.push_back(block.layer->kept().size());
    }
    return counts;
  };
  EXPECT_EQ(kept("half_of-1.random"), (std::vector<size_t>{4, 2}));
  EXPECT_EQ(kept("pruned/half_of-1.router-norm-change"), (std::vector<size_t>{4, 2}));
  EXPECT_EQ(load_model(first / "ids.random")->moe_blocks()[0].layer->kept(),
            (std::vector<int64_t>{0, 3}));
  const double whole = outcome.at("keep4/random", "parameters");
  EXPECT_EQ(whole - outcome.at("half_of-1/random", "parameters"), 2 * 144);
  EXPECT_EQ(whole - outcome.at("ids/random", "parameters"), 3 * 144);
  // A choice that is another one's under a second name is the same network.
  EXPECT_EQ(outcome.at("half_of-1/random", "accuracy_recovered"),
            outcome.at("but-0/random", "accuracy_recovered"));
}

TEST_F(SweepChoices, ChoicesByLayerJoinWhatIsThereUnlessTheirNameMeantAnother) {
  const auto choice = [](const char* name, const char* keep) {
    return std::string(R"(per_layer=[{"name": ")") + name + R"(", "keep": )" + keep + "}]";
  };
  const std::vector<std::string> plain = {"keep=[4]", "export=null", kTwoLayers};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> changes = plain;
    changes.push_back(more);
    return changes;
  };
  run(out, plain);
  EXPECT_THAT(read_text(out / "config.json"), Not(HasSubstr("per_layer")));
  const Outcome one = run(out, with(choice("first", R"({"0": 2})")));
  const Outcome other = run(out, with(choice("second", R"({"0": 2, "1": 2})")));
  EXPECT_EQ(other.networks(), 4u);
  const std::string folder = fs::canonical(out).string();
  EXPECT_EQ(
      refusal(out, with(choice("first", R"({"0": 3})"))),
      "usage: " + folder +
          ": was made with other settings: 'runs.per_layer.first.0' was 2 and is 3 now; set back "
          "what changed or give another --out");
  auto older = nlohmann::ordered_json::parse(read_text(out / "config.json"));
  Json& runs = older["runs"];
  const Json first = runs.at("per_layer.first");
  runs["by_layer.first"] = first;
  runs.erase("per_layer.first");
  const Json prune = runs.at("prune");
  runs["prune"] = {{"whole", prune.at("exclude_blocks")},
                   {"replace", prune.at("replace")},
                   {"images", prune.at("num_calibration_images")}};
  write_atomic(out / "config.json", older.dump());
  const Outcome again = run(out, with(choice("first", R"({"0": 2})")));
  EXPECT_EQ(again.numbers(), one.numbers());
}

TEST_F(SweepChoices, ChoicesByLayerAreCheckedBeforeAnythingIsTrained) {
  const auto expect = [&](const std::string& choices, const std::string& part) {
    EXPECT_THAT(refusal(out, {"keep=[4]", "export=null", "per_layer=" + choices}),
                AllOf(StartsWith("usage: "), HasSubstr(part)));
    EXPECT_FALSE(fs::exists(out)) << choices;
  };
  expect(R"([{"name": "a", "keep": {"0": 2}}])",
         "block 0 has no experts; choose among the blocks 1");
  expect(R"([{"name": "a", "keep": {"1": 5}}])", "cannot keep 5 experts");
  expect(R"([{"name": "a", "keep": {"1": 1}}])", "that a token selects");
  expect(R"([{"name": "a", "keep": {"1": 2}}, {"name": "a", "keep": 3}])",
         "two rows are called 'a/router-norm-change'");
  expect(R"([{"name": "keep3", "keep": {"1": 2}}])", "not begin like that of a number");
  expect(R"([{"name": "a/b", "keep": {"1": 2}}])", "may hold letters");
  expect(R"([{"name": "a", "keep": "file.json"}])", "names no file");
  expect(R"([{"name": "a"}])", "missing key 'keep'");
}

TEST_F(SweepChoices, AChoiceThatIsRefusedLeavesAFolderAsItWas) {
  const auto with = [](const char* keep) {
    return std::vector<std::string>{
        "keep=[4]", "export=null",
        std::string(R"(per_layer=[{"name": "a", "keep": )") + keep + "}]"};
  };
  run(out, {"keep=[4]", "export=null"});
  const std::string before = read_text(out / "config.json");
  EXPECT_THAT(refusal(out, with(R"({"1": 5})")), HasSubstr("cannot keep 5"));
  EXPECT_EQ(read_text(out / "config.json"), before);
  EXPECT_EQ(run(out, with(R"({"1": 3})")).networks(), 4u) << "the name is free";
}

TEST_F(SweepChoices, APapersValuesMayBeOfChoicesByLayer) {
  const auto paper = [&](const std::string& row, const std::vector<std::string>& more = {}) {
    std::vector<std::string> changes = {"paper={\"" + row + "\": {\"flops_saved\": 1}}"};
    changes.insert(changes.end(), more.begin(), more.end());
    return config_of(changes).paper.size();
  };
  const std::string half = R"(per_layer=[{"name": "half", "keep": {"1": 2}}])";
  EXPECT_EQ(paper("half/random", {half}), 1u);
  EXPECT_EQ(paper("half/reap", {half}), 1u) << "a criterion that was left out";
  EXPECT_EQ(paper("other/random", {half}), 1u) << "a choice that the command line left out";
  EXPECT_THAT(error_of([&] { paper("half/random"); }), HasSubstr("unknown row 'half/random'"));
  EXPECT_THAT(error_of([&] { paper("half/radom", {half}); }),
              HasSubstr("did you mean 'half/random'"));
}

}  // namespace
}  // namespace moesaic::sweep_test
