// SPDX-License-Identifier: Apache-2.0
#include <torch/script.h>

#include <cmath>
#include <csignal>
#include <set>

#include "base/support.h"
#include "moesaic/base/file.h"
#include "moesaic/base/signal.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/data/views.h"
#include "moesaic/export/formats.h"
#include "moesaic/prune/plan.h"
#include "moesaic/report/experiment.h"
#include "prune/plan_networks.h"
#include "report/sweep_fixture.h"
#include "support/matchers.h"

namespace moesaic::sweep_test {
namespace {

/// Both have the same networks, of which one trained nothing.
void expect_same_but_pretraining(const Outcome& given, const Outcome& trained) {
  ASSERT_EQ(given.rows.size() + 1, trained.rows.size());
  EXPECT_EQ(given.rows[0].name, "finetune");
  for (const MeasuredRow& row : given.rows) {
    for (const char* metric : {"test_accuracy", "accuracy", "accuracy_recovered"}) {
      EXPECT_EQ(given.all(row.name, metric), trained.all(row.name, metric)) << row.name;
    }
  }
}

TEST_F(SweepRuns, MeasuresEveryPair) {
  const Outcome outcome = run(out);
  ASSERT_EQ(outcome.rows.size(), 2u + 6u + 1u);
  EXPECT_EQ(outcome.rows[0].name, "pretrain");
  EXPECT_EQ(outcome.rows[2].name, "keep4/router-norm-change");
  EXPECT_EQ(outcome.rows[7].name, "keep2/random");
  const SweepPlan plan = sweep_plan(config_of(), outcome.rows);
  EXPECT_EQ(plan.num_experts, 4);
  EXPECT_EQ(plan.phases[0].num_images, 60);
  EXPECT_EQ(plan.phases[1].data, "two");
  for (size_t i = 2; i < 8; ++i) {
    const std::string& row = outcome.rows[i].name;
    EXPECT_GT(outcome.at(row, "images_per_second"), 0.0);
    ASSERT_EQ(outcome.all(row, "accuracy_recovered").size(), 1u);
    EXPECT_GE(outcome.at(row, "accuracy_recovered"), 0.0);
    EXPECT_LE(outcome.at(row, "accuracy_recovered"), 100.0);
    // float32 and a header
    EXPECT_GT(outcome.at(row, "bytes"), 4 * outcome.at(row, "parameters"));
  }
  // An expert of width 8 with 8 hidden neurons has 64 + 8 + 64 + 8 numbers.
  const std::string whole = "keep4/random", half = "keep2/random";
  EXPECT_EQ(outcome.at(whole, "parameters") - outcome.at(half, "parameters"), 2 * 144);
  EXPECT_LT(outcome.at(half, "flops"), outcome.at(whole, "flops"));
  // Without a capacity the two counts agree where no expert is missing, and two of four experts
  // have half of a token's two rows of 2 * 8 * 8 products, for each of 5 tokens.
  EXPECT_DOUBLE_EQ(outcome.at(whole, "capacity_flops"), outcome.at(whole, "flops"));
  EXPECT_DOUBLE_EQ(outcome.at(whole, "capacity_flops") - outcome.at(half, "capacity_flops"),
                   2 * 5 * 2 * 8 * 8);
  // Each accuracy is that of the checkpoint that it speaks of.
  const auto measured = [&](const fs::path& checkpoint) {
    return evaluate(*load_model(checkpoint), report_test::open_tiny("two", "test"))
        .metric("accuracy");
  };
  EXPECT_EQ(outcome.at(half, "accuracy"), measured(first / "pruned" / "keep2-random"));
  EXPECT_EQ(outcome.at(half, "accuracy_recovered"), measured(first / "keep2-random"));
  EXPECT_NE(outcome.at(half, "accuracy"), outcome.at(half, "accuracy_recovered"));
  EXPECT_GT(outcome.at("finetune", "test_accuracy"), 70.0);
  // Nothing is pruned: no criterion has a say, and fine-tuning says how good it is.
  EXPECT_EQ(outcome.at(whole, "accuracy"), outcome.at("finetune", "test_accuracy"));
  for (const char* metric : {"accuracy_recovered", "images_per_second"}) {
    EXPECT_EQ(outcome.at(whole, metric), outcome.at("keep4/router-norm-change", metric));
  }
}

TEST_F(SweepRuns, LeavesRunsAndCheckpointsThatLoad) {
  run(out);
  std::set<std::string> folders;
  for (const auto& entry : fs::directory_iterator(first)) {
    if (entry.is_directory()) folders.insert(entry.path().filename().string());
  }
  EXPECT_EQ(folders,
            (std::set<std::string>{"train", "pruned", "keep4", "keep3-random", "keep2-random",
                                   "keep3-router-norm-change", "keep2-router-norm-change"}));
  EXPECT_FALSE(fs::exists(first / "pruned" / "keep4"));
  const auto pruned = load_model(first / "pruned" / "keep2-router-norm-change");
  const auto recovered = load_model(first / "keep2-router-norm-change" / "checkpoints" / "recover");
  EXPECT_EQ(pruned->moe_blocks()[0].layer->kept().size(), 2u);
  EXPECT_EQ(pruned->moe_blocks()[0].layer->kept(), recovered->moe_blocks()[0].layer->kept());
  EXPECT_EQ(load_model(first / "keep4")->moe_blocks()[0].layer->kept().size(), 4u);
}

TEST_F(SweepRuns, ExportsTheChosenNetwork) {
  EXPECT_GT(run(out).at("export", "forward_time_ratio"), 0.0);
  auto script = torch::jit::load((out / kSweepModel).string());
  const at::Tensor images = torch::linspace(-1.0, 1.0, 3 * 16).reshape({3, 1, 4, 4});
  const at::Tensor ours =
      load_model(first / "keep2-router-norm-change")->forward(images).logits.detach();
  EXPECT_TRUE(torch::allclose(script.forward({images}).toTensor(), ours, 1e-5, 1e-6));
}

TEST_F(SweepRuns, GoesOnWithoutAProgramThatCannotBeWritten) {
  const test::ScopedEnv python("MOESAIC_PYTHON", (temp / "none").string());
  Outcome outcome;
  EXPECT_THAT(test::said_by([&] {
                outcome = run(out, {"keep=[2]", "export.evaluate_pt2=true"});
              }),
              HasSubstr("no such program; the results have no .pt2"));
  EXPECT_GT(outcome.at("export", "forward_time_ratio"), 0.0);
  EXPECT_EQ(outcome.rows.back().name, "export");
  EXPECT_FALSE(fs::exists(out / kSweepProgram));
}

TEST_F(SweepRuns, EvaluatesTheProgramOfTheChosenNetwork) {
  try {
    export_python();
  } catch (const Error&) {
    GTEST_SKIP() << "needs the Python of tools/setup.sh";
  }
  const Outcome outcome = run(out, {"keep=[2]", "export.evaluate_pt2=true"});
  EXPECT_EQ(outcome.rows.back().name, kSweepProgramRow);
  EXPECT_EQ(outcome.at(kSweepProgramRow, "accuracy"),
            outcome.at("keep2/router-norm-change", "accuracy_recovered"));
  EXPECT_GT(outcome.at(kSweepProgramRow, "forward_time_ratio"), 0.0);
  EXPECT_TRUE(fs::exists(out / kSweepProgram));
}

TEST_F(SweepRuns, TheSameCallUsesWhatIsFinished) {
  const std::string before = run(out).numbers();
  const auto written = fs::last_write_time(first / "keep3-random" / "checkpoints" / "recover");
  ReproduceOptions options = options_for(out);
  options.open = [](std::string_view name, std::string_view split) {
    if (split == "train") ADD_FAILURE() << "trains again on " << name;
    return report_test::open_tiny(name, split);
  };
  Outcome again;
  EXPECT_TRUE(measure_rows(config_of(), options, again.rows));
  EXPECT_EQ(again.numbers(), before);
  EXPECT_EQ(fs::last_write_time(first / "keep3-random" / "checkpoints" / "recover"), written);
}

TEST_F(SweepRuns, MoreRunsJoinWhatIsThereWithSeedsThatFollow) {
  const Outcome one = run(out, {"keep=[4, 2]"});
  const Outcome two = run(out, {"keep=[4, 2]", "num_runs=2"});
  const Outcome other = run(temp / "other", {"keep=[4, 2]", "train.seed=6"});
  ASSERT_EQ(two.rows.size(), one.rows.size());
  for (const MeasuredRow& row : two.rows) {
    for (const char* metric : {"test_accuracy", "accuracy", "accuracy_recovered", "flops"}) {
      std::vector<double> both = one.all(row.name, metric);
      for (const double value : other.all(row.name, metric)) both.push_back(value);
      EXPECT_EQ(two.all(row.name, metric), both) << row.name << " " << metric;
    }
  }
  EXPECT_EQ(two.all("keep2/random", "parameters"), one.all("keep2/random", "parameters"));
}

TEST_F(SweepRuns, PrunesByImagesLeavesMeansAndNeedsNoExport) {
  run(out, {"keep=[2]", "criteria=[\"reap\"]", "replace=mean", "images=20", "export=null"});
  EXPECT_FALSE(fs::exists(out / "model.ts.pt"));
  EXPECT_TRUE(
      load_model(first / "keep2-reap")->moe_blocks()[0].layer->replacement_outputs.defined());
  EXPECT_THAT(refusal(out, {"keep=[2]", "criteria=[\"reap\"]", "export=null"}),
              HasSubstr("'runs.prune.replace' was"));
}

TEST_F(SweepRuns, OfOnePhaseIsComparedWithWhatItBeganWith) {
  run(out, {"keep=[2]"});
  const fs::path pretrained = first / "train" / "checkpoints" / "pretrain";
  const std::string one = R"(train.phases=[{"name": "finetune", "data": "two", "batch_size": 6,
    "steps": 20, "optimizer": {"name": "adamw", "lr": 0.01}, "on_entry": {"new_head": true}}])";
  const Outcome outcome =
      run(temp / "one", {"keep=[2]", one, "train.model=null", "train.init=" + pretrained.string()});
  EXPECT_EQ(outcome.rows[0].name, "finetune");
  const fs::path folder = temp / "one" / "seed5";
  const auto kept = load_model(folder / "pruned" / "keep2-router-norm-change")->moe_blocks();
  const PrunePlan plan = plan_pruning(*load_model(folder / "train"), load_model(pretrained).get(),
                                      "router-norm-change", KeepSpec::count(2));
  EXPECT_EQ(kept[0].layer->kept(), plan.layers[0].kept);
}

TEST_F(SweepRuns, OfAnUpcycledNetworkIsComparedWithWhatFineTuningBeganWith) {
  const std::string before = R"(train.phases=[
    {"name": "dense", "data": "three", "batch_size": 6, "steps": 3, "optimizer": {"lr": 0.02}},
    {"name": "mixture", "data": "three", "batch_size": 6, "steps": 3, "optimizer": {"lr": 0.02},
     "on_entry": {"upcycle": {"num_experts": 4, "layers": [1]}}},)";
  const std::string aside = R"({"name": "aside", "data": "three", "batch_size": 6, "steps": 1,
     "optimizer": {"lr": 0.02}, "on_entry": {"restore": "dense"}},)";
  const auto last = [](const std::string& entry) {
    return R"({"name": "finetune", "data": "two", "batch_size": 6, "steps": 20,
     "optimizer": {"lr": 0.01}, "on_entry": {"new_head": true)" +
           entry + "}}]";
  };
  const std::string restore = R"(, "restore": "mixture")";
  for (const std::string& phases : {before + last(""), before + aside + last(restore)}) {
    fs::remove_all(out);
    run(out, {"keep=[2]", "train.model.encoder.moe.layers=[]", phases});
    const auto kept = load_model(first / "pruned" / "keep2-router-norm-change")->moe_blocks();
    const PrunePlan plan = plan_pruning(
        *load_model(first / "train"), load_model(first / "train" / "checkpoints" / "mixture").get(),
        "router-norm-change", KeepSpec::count(2));
    EXPECT_EQ(kept[0].layer->kept(), plan.layers[0].kept);
  }
}

TEST_F(SweepRuns, OfAFineTunedNetworkTrainsNothingBeforePruning) {
  const Outcome trained = run(out, {"keep=[4, 2]"});
  const fs::path checkpoints = first / "train" / "checkpoints", given = temp / "given";
  const std::vector<std::string> settings = {"keep=[4, 2]",
                                             "finetuned=" + (checkpoints / "finetune").string(),
                                             "train.init=" + (checkpoints / "pretrain").string()};
  const Outcome outcome = run(given, settings);
  EXPECT_FALSE(fs::exists(given / "seed5" / "train"));
  // Pruned by comparison with train.init, and recovered, it is what it was in the first sweep.
  expect_same_but_pretraining(outcome, trained);
  EXPECT_THAT(refusal(given, {"keep=[4, 2]", settings[2]}), HasSubstr("'runs.finetuned' was"));
  EXPECT_THAT(refusal(temp / "x", {"finetuned=/nowhere", settings[2]}),
              HasSubstr("finetuned '/nowhere' is not there"));
  EXPECT_FALSE(fs::exists(temp / "x"));
  EXPECT_THAT(refusal(temp / "x", {settings[1]}), HasSubstr("needs train.init"));
}

TEST_F(SweepRuns, FindsClassesByTheirNamesInDataOfAnotherOrder) {
  const Outcome trained = run(out, {"keep=[4, 2]"});
  const fs::path checkpoints = first / "train" / "checkpoints";
  const RunsConfig config =
      config_of({"keep=[4, 2]", "finetuned=" + (checkpoints / "finetune").string(),
                 "train.init=" + (checkpoints / "pretrain").string()});
  ReproduceOptions options = options_for(temp / "swapped");
  options.open = [](std::string_view name, std::string_view split) {
    return with_classes_of(report_test::open_tiny(name, split), {"shade 1", "shade 0"});
  };
  Outcome outcome;
  ASSERT_TRUE(measure_rows(config, options, outcome.rows));
  expect_same_but_pretraining(outcome, trained);
  options = options_for(temp / "renamed");
  options.open = [](std::string_view name, std::string_view split) {
    DatasetInfo info = report_test::open_tiny(name, split)->info();
    info.classes = {"shade 0", "shade 11"};
    return make_memory_dataset(std::move(info), std::vector<uint8_t>(32), {0, 1});
  };
  EXPECT_EQ(
      error_of([&] { measure_rows(config, options, outcome.rows); }),
      "usage: " + (checkpoints / "finetune").string() +
          ": 'two': the class 'shade 11' is not a class of the network; the nearest is 'shade 1'");
}

TEST_F(SweepRuns, ComparesReplacementsOfTheSameExperts) {
  const Outcome outcome =
      run(out, {"keep=[2]", R"(criteria=["random", "random.mean", "random.reroute"])", "images=20",
                "export=null"});
  EXPECT_EQ(outcome.networks(), 6u);
  const auto layer_of = [&](const std::string& folder) {
    return load_model(first / "pruned" / folder)->moe_blocks()[0].layer;
  };
  const nn::MoELayer zero = layer_of("keep2-random"), mean = layer_of("keep2-random.mean"),
                     rerouted = layer_of("keep2-random.reroute");
  EXPECT_EQ(mean->kept(), zero->kept());
  EXPECT_EQ(rerouted->kept(), zero->kept());
  EXPECT_FALSE(zero->replacement_outputs.defined());
  EXPECT_TRUE(mean->replacement_outputs.defined());
  EXPECT_EQ(zero->options().rule.pruned, PrunedSelection::zero);
  EXPECT_EQ(rerouted->options().rule.pruned, PrunedSelection::reroute);
  // Tokens that chose a removed expert compute another one.
  EXPECT_GT(outcome.at("keep2/random.reroute", "flops"), outcome.at("keep2/random", "flops"));
  EXPECT_THAT(refusal(temp / "other", {"keep=[2]", R"(criteria=["random.men"])"}),
              HasSubstr("did you mean 'random.mean'?"));
  EXPECT_THAT(refusal(temp / "other", {"keep=[2]", R"(criteria=["random.nothing"])", "export=null",
                                       "train.model.encoder.moe.router.pruned_selection=reroute"}),
              HasSubstr("criterion 'random.nothing': block "));
}

TEST_F(SweepRuns, CountsAgreementWithTheUnprunedNetworkAndAccuracyByClass) {
  const Outcome outcome = run(out, {"keep=[4, 2]"});
  EXPECT_EQ(outcome.at("keep4/random", "agreement"), 100.0);
  const auto predicted = [&](const fs::path& checkpoint) {
    const auto model = load_model(checkpoint);
    const Evaluation found = evaluate(*model, open_tiny("two", "test"));
    EXPECT_EQ(found.predictions.predicted_N.sizes(), at::IntArrayRef({60}));
    return found;
  };
  const Evaluation whole = predicted(first / "train" / "checkpoints" / "finetune"),
                   pruned = predicted(first / "pruned" / "keep2-random");
  EXPECT_DOUBLE_EQ(outcome.at("keep2/random", "agreement"),
                   100.0 * pruned.predictions.predicted_N.eq(whole.predictions.predicted_N)
                               .to(at::kDouble)
                               .mean()
                               .item<double>());
  const auto row = std::ranges::find(outcome.rows, "keep2/random", &MeasuredRow::name);
  const MeasuredTable& table = row->runs.at(0).final.tables.at("class_accuracy");
  ASSERT_EQ(table.rows, (std::vector<std::string>{"pruned", "recovered"}));
  ASSERT_EQ(table.columns.size(), 2u);
  for (const int64_t c : {0, 1}) {
    EXPECT_DOUBLE_EQ(table.values[0][static_cast<size_t>(c)],
                     100.0 * static_cast<double>(pruned.confusion.count(c, c)) /
                         static_cast<double>(pruned.confusion.num_images(c)));
  }
}

TEST_F(SweepRuns, WhatPruningSavesIsOfTheWholeNetwork) {
  const Outcome outcome = run(out, {"keep=[2]"});
  EXPECT_EQ(outcome.networks(), 4u);
  const double whole = outcome.at("keep4/random", "parameters");
  EXPECT_DOUBLE_EQ(outcome.at("keep2/random", "parameters_pruned"), 100.0 * 2 * 144 / whole);
}

TEST_F(SweepRuns, ReadsTheCalibrationImagesOnce) {
  auto reads = std::make_shared<int64_t>(0);
  ReproduceOptions options = options_for(out);
  options.open = [reads](std::string_view name, std::string_view split) {
    std::shared_ptr<const Dataset> data = report_test::open_tiny(name, split);
    if (split != "train" || name != "two") return data;
    return std::shared_ptr<const Dataset>(
        std::make_shared<train_test::WatchedDataset>(data, [reads] { ++*reads; }));
  };
  const auto reads_of = [&](const std::string& criteria) {
    Outcome outcome;
    const int64_t before = *reads;
    EXPECT_TRUE(measure_rows(config_of({"keep=[4, 3, 2]", "images=48", "export=null",
                                        "recover.steps=1", "criteria=" + criteria}),
                             options, outcome.rows));
    return *reads - before;
  };
  reads_of("[\"random\"]");  // Trains, too.
  const int64_t without = reads_of("[\"magnitude\"]");
  EXPECT_EQ(reads_of("[\"reap\"]") - without, 48) << "for two networks";
}

TEST_F(SweepRuns, FiguresOfMoreRunsStandBesideNetworksThatAreMadeAsTheirs) {
  const std::string kept = R"(kept={"rows": [{"name": "keep2/random", "metric": "accuracy",
                                              "measured": 70.5, "std": 2.25, "runs": 5}]})";
  const auto report = [&](const std::string& change) {
    const fs::path folder = temp / change;
    const std::string summary =
        reproduce(tiny_experiment({kept, "keep=[2]", change}), options_for(folder)).summary;
    EXPECT_EQ(summary.find("70.50 (2.52)") == std::string::npos,
              read_text(folder / "report.md").find("70.50 (2.52)") == std::string::npos);
    return summary;
  };
  EXPECT_THAT(report("throughput.num_rounds=1"), HasSubstr("Kept from 5 runs"));
  for (const char* change :
       {"recover.steps=1", "train.seed=9", "num_calibration_images=7", "exclude_blocks=[]"}) {
    EXPECT_THAT(report(change), Not(HasSubstr("Kept from 5 runs"))) << change;
  }
}

TEST_F(SweepRuns, APapersValuesNameItsRowsAndMetrics) {
  const auto reproduced = [&](const std::string& paper) {
    return reproduce(tiny_experiment({"keep=[2]", "paper=" + paper}), options_for(out)).results;
  };
  const Results results = reproduced(
      R"({"keep2/random": {"flops_saved": [40, 100], "accuracy_lost": {"at_most": 100}}})");
  EXPECT_EQ(nlohmann::ordered_json::parse(read_text(out / "results.json")), to_json(results));
  EXPECT_EQ(results.rows.size(), 2u + 4u * 15u + 1u);
  EXPECT_EQ(read_text(out / "report.md").find("# tiny\n"), 0u);
  EXPECT_EQ(results.find("keep2/random", "flops_saved")->paper.value, 40.0);
  EXPECT_EQ(results.find("keep2/random", "flops_saved")->verdict(), "inside");
  EXPECT_FALSE(results.find("keep2/random", "accuracy")->paper.value);
  EXPECT_EQ(results.find("keep2/random", "accuracy_lost")->verdict(), "open") << "of one run";
  for (const ResultRow& row : results.rows) EXPECT_EQ(row.values.begin()->first, 5) << row.name;
  // What the sweep leaves out, as overrides do, is no mistake.
  EXPECT_EQ(reproduced(R"({"keep3/random": {"accuracy": 1}})").find("keep3/random", "accuracy"),
            nullptr);
  EXPECT_THAT(error_of([&] { reproduced(R"({"keep2/radom": {"accuracy": 1}})"); }),
              HasSubstr("did you mean 'keep2/random'"));
  EXPECT_THAT(error_of([&] { reproduced(R"({"keep2/random": {"acuracy": 1}})"); }),
              HasSubstr("did you mean 'accuracy'"));
}

TEST_F(SweepRuns, MoreCriteriaThanMarkersAreDrawn) {
  const std::string criteria =
      R"(criteria=["router-norm-change", "router-magnitude", "magnitude", "importance",
                   "load", "frequency", "reap", "man", "random"])";
  reproduce(tiny_experiment({"keep=[2]", criteria}), options_for(out));
  EXPECT_TRUE(fs::exists(out / "figure.png"));
}

TEST_F(SweepRuns, OtherSettingsDoNotMixWithWhatIsThere) {
  run(out, {"keep=[2]"});
  const std::string start = "usage: " + fs::canonical(out).string() +
                            ": was made with other settings: ",
                    end = "; set back what changed or give another --out";
  EXPECT_EQ(refusal(out, {"train.phases.pretrain.steps=7"}),
            start + "'runs.train.phases.0.steps' was 30 and is 7 now" + end);
  EXPECT_EQ(refusal(out, {"recover.steps=4"}),
            start + "'runs.recover.steps' was 3 and is 4 now" + end);
  EXPECT_NO_THROW(run(out, {"keep=[2]", "train.num_loader_threads=1"}));
  auto older = nlohmann::ordered_json::parse(read_text(out / "config.json"));
  older["runs"]["train"].erase("tf32");
  older["runs"]["recover"].erase("frozen");
  write_atomic(out / "config.json", older.dump());
  EXPECT_NO_THROW(run(out, {"keep=[2]"})) << "settings that came later have their defaults";
}

TEST_F(SweepRuns, ThePlanRefusesARowThatDoesNotSayItsImages) {
  MeasuredRow row{"pretrain", {}, {RunRecord{}}};
  const auto error = [&] { return error_of([&] { sweep_plan(config_of(), {row}); }); };
  EXPECT_EQ(error(),
            "failure: runs.json: 'pretrain#0': test_images must be a number between 1 and "
            "1000000000, found none; delete this entry, and the network is measured again");
  for (const double images : {0.0, -1.0, 1e30, std::nan("")}) {
    row.runs[0].final.numbers["test_images"] = images;
    EXPECT_THAT(error(), HasSubstr(fmt::format("found {}; delete", images))) << images;
  }
  row.runs[0].final.numbers["test_images"] = 60;
  EXPECT_EQ(sweep_plan(config_of(), {row}).phases[0].num_images, 60);
}

TEST_F(SweepRuns, AnotherNumberToKeepJoinsWhatIsThere) {
  const Outcome two = run(out, {"keep=[4, 2]"}), three = run(out);
  EXPECT_EQ(two.networks(), 4u);
  EXPECT_EQ(three.networks(), 6u);
  EXPECT_EQ(two.at("keep2/random", "accuracy_recovered"),
            three.at("keep2/random", "accuracy_recovered"));
}

TEST_F(SweepRuns, MoreExpertsThanThereAreAreRefused) {
  EXPECT_EQ(
      refusal(out, {"keep=[5, 2]"}),
      "usage: argument 'keep=[5, 2]': a layer cannot keep 5 of its 4 experts; choose at most 4");
  EXPECT_THAT(refusal(out, {"keep=[1, 2]"}), StartsWith("usage: ")) << "a token selects two";
}

/// Runs with a signal that comes when the n-th image is read; true if it finished all the same.
bool run_until(const fs::path& out, int64_t images) {
  const StopSignal stop;
  auto left = std::make_shared<int64_t>(images);
  ReproduceOptions options = options_for(out);
  options.stop = &stop;
  options.open = [left](std::string_view name, std::string_view split) {
    return std::make_shared<train_test::WatchedDataset>(report_test::open_tiny(name, split),
                                                        [left] {
                                                          if (--*left == 0) std::raise(SIGINT);
                                                        });
  };
  Outcome outcome;
  const bool done = measure_rows(config_of(), options, outcome.rows);
  EXPECT_EQ(stop.number(), done ? 0 : SIGINT);
  return done;
}

TEST_F(SweepRuns, StoppedAnywhereItGoesOnToTheSameNumbers) {
  const fs::path whole = temp / "whole";
  const std::string expected = run(whole).numbers();
  // In pretraining, fine-tuning, evaluations, recoveries and timing.
  int64_t stops = 0;
  for (int64_t images = 10; !run_until(out, images); images += 37) {
    ASSERT_LT(++stops, 200);
  }
  EXPECT_GE(stops, 3);
  EXPECT_EQ(run(out).numbers(), expected);
  const fs::path weights = fs::path("checkpoints") / "recover" / "model.safetensors";
  for (const char* name : {"keep4", "keep3-random", "keep2-router-norm-change"}) {
    EXPECT_TRUE(read_text(first / name / weights) == read_text(whole / "seed5" / name / weights))
        << name;
  }
}

}  // namespace
}  // namespace moesaic::sweep_test
