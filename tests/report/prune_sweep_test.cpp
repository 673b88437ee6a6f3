// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/prune_sweep.h"

#include <gtest/gtest.h>
#include <torch/script.h>

#include <csignal>
#include <set>

#include "moesaic/base/file.h"
#include "moesaic/base/signal.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"
#include "moesaic/data/class_names.h"
#include "moesaic/prune/plan.h"
#include "moesaic/report/reproduce.h"
#include "report/sweep_fixture.h"

namespace moesaic::sweep_test {
namespace {

TEST_F(PruneSweepRun, MeasuresEveryPair) {
  const SweepOutcome outcome = run(out);
  EXPECT_EQ(outcome.experts, 4);
  ASSERT_EQ(outcome.phases.size(), 2u);
  EXPECT_EQ(outcome.phases[0].name, "pretrain");
  EXPECT_EQ(outcome.phases[0].images, 60);
  EXPECT_EQ(outcome.phases[1].data, "two");
  ASSERT_EQ(outcome.points.size(), 6u);
  for (const SweepPoint& point : outcome.points) {
    EXPECT_GT(point.images_per_second, 0.0);
    ASSERT_EQ(point.accuracy_recovered.size(), 1u);
    EXPECT_GE(point.accuracy_recovered[0], 0.0);
    EXPECT_LE(point.accuracy_recovered[0], 100.0);
    EXPECT_GT(point.bytes, 4 * point.parameters);  // float32 and a header
  }
  // An expert of width 8 with 8 hidden neurons has 64 + 8 + 64 + 8 numbers.
  const SweepPoint &whole = outcome.at("keep4", "random"), &half = outcome.at("keep2", "random");
  EXPECT_EQ(whole.parameters - half.parameters, 2 * 144);
  EXPECT_LT(half.flops, whole.flops);
  // Each accuracy is that of the checkpoint that it speaks of.
  const auto measured = [&](const fs::path& checkpoint) {
    return evaluate(*load_model(checkpoint), report_test::open_tiny("two", "test"))
        .metric("accuracy");
  };
  EXPECT_EQ(half.accuracy[0], measured(first / "pruned" / "keep2-random"));
  EXPECT_EQ(half.accuracy_recovered[0], measured(first / "keep2-random"));
  EXPECT_NE(half.accuracy, half.accuracy_recovered);
  EXPECT_GT(outcome.phases[1].accuracy[0], 70.0);
  // Nothing is pruned: no criterion has a say, and fine-tuning says how good it is.
  EXPECT_EQ(whole.accuracy, outcome.phases[1].accuracy);
  const SweepPoint& same = outcome.at("keep4", "router-norm-change");
  EXPECT_EQ(whole.accuracy_recovered, same.accuracy_recovered);
  EXPECT_EQ(whole.images_per_second, same.images_per_second);
}

TEST_F(PruneSweepRun, LeavesRunsAndCheckpointsThatLoad) {
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

TEST_F(PruneSweepRun, ExportsTheChosenNetwork) {
  const SweepOutcome outcome = run(out);
  EXPECT_EQ(outcome.exported->file, "model.ts.pt");
  auto script = torch::jit::load((out / outcome.exported->file).string());
  const at::Tensor images = torch::linspace(-1.0, 1.0, 3 * 16).reshape({3, 1, 4, 4});
  const at::Tensor ours =
      load_model(first / "keep2-router-norm-change")->forward(images).logits.detach();
  EXPECT_TRUE(torch::allclose(script.forward({images}).toTensor(), ours, 1e-5, 1e-6));
}

TEST_F(PruneSweepRun, TheSameCallUsesWhatIsFinished) {
  const std::string before = numbers(run(out));
  const auto written = fs::last_write_time(first / "keep3-random" / "checkpoints" / "recover");
  ReproduceOptions options = options_for(out);
  options.open = [](std::string_view name, std::string_view split) {
    if (split == "train") ADD_FAILURE() << "trains again on " << name;
    return report_test::open_tiny(name, split);
  };
  SweepOutcome again;
  EXPECT_TRUE(run_prune_sweep(config_of(), options, again));
  EXPECT_EQ(numbers(again), before);
  EXPECT_EQ(fs::last_write_time(first / "keep3-random" / "checkpoints" / "recover"), written);
}

TEST_F(PruneSweepRun, AnotherNumberToKeepJoinsWhatIsThere) {
  const SweepOutcome two = run(out, {"keep=[4, 2]"});
  const SweepOutcome three = run(out);
  EXPECT_EQ(two.points.size(), 4u);
  ASSERT_EQ(three.points.size(), 6u);
  EXPECT_EQ(two.at("keep2", "random").accuracy_recovered,
            three.at("keep2", "random").accuracy_recovered);
}

TEST_F(PruneSweepRun, MoreRunsJoinWhatIsThereWithSeedsThatFollow) {
  const SweepOutcome one = run(out, {"keep=[4, 2]"});
  const SweepOutcome two = run(out, {"keep=[4, 2]", "runs=2"});
  const SweepOutcome other = run(temp / "other", {"keep=[4, 2]", "train.seed=6"});
  EXPECT_EQ(two.runs(), 2);
  for (size_t i = 0; i < two.phases.size(); ++i) {
    EXPECT_EQ(two.phases[i].accuracy,
              (std::vector<double>{one.phases[i].accuracy[0], other.phases[i].accuracy[0]}));
  }
  ASSERT_EQ(two.points.size(), 4u);
  for (size_t i = 0; i < two.points.size(); ++i) {
    const SweepPoint &a = one.points[i], &b = other.points[i], &both = two.points[i];
    EXPECT_EQ(both.accuracy, (std::vector<double>{a.accuracy[0], b.accuracy[0]}));
    EXPECT_EQ(both.accuracy_recovered,
              (std::vector<double>{a.accuracy_recovered[0], b.accuracy_recovered[0]}));
    EXPECT_EQ(both.flops, (std::vector<double>{a.flops[0], b.flops[0]}));
  }
}

TEST_F(PruneSweepRun, PrunesByImagesLeavesMeansAndNeedsNoExport) {
  const SweepOutcome outcome =
      run(out, {"keep=[2]", "criteria=[\"reap\"]", "replace=mean", "images=20", "export=null"});
  EXPECT_FALSE(outcome.exported);
  EXPECT_FALSE(fs::exists(out / "model.ts.pt"));
  EXPECT_TRUE(load_model(first / "keep2-reap")->moe_blocks()[0].layer->stand_in.defined());
  EXPECT_NE(error_of([&] {
              run(out, {"keep=[2]", "criteria=[\"reap\"]", "export=null"});
            }).find("'prune.replace' was"),
            std::string::npos);
}

TEST_F(PruneSweepRun, OfOnePhaseIsComparedWithWhatItBeganWith) {
  run(out, {"keep=[2]"});
  const fs::path pretrained = first / "train" / "checkpoints" / "pretrain";
  const std::string one = R"(train.phases=[{"name": "finetune", "data": "two", "batch_size": 6,
    "steps": 20, "optimizer": {"name": "adamw", "lr": 0.01}, "on_entry": {"new_head": true}}])";
  const SweepOutcome outcome =
      run(temp / "one", {"keep=[2]", one, "train.model=null", "train.init=" + pretrained.string()});
  EXPECT_EQ(outcome.phases.size(), 1u);
  const fs::path folder = temp / "one" / "seed5";
  const auto kept = load_model(folder / "pruned" / "keep2-router-norm-change")->moe_blocks();
  const PrunePlan plan = plan_pruning(*load_model(folder / "train"), load_model(pretrained).get(),
                                      "router-norm-change", KeepSpec::count(2));
  EXPECT_EQ(kept[0].layer->kept(), plan.layers[0].kept);
}

TEST_F(PruneSweepRun, OfAFineTunedNetworkTrainsNothingBeforePruning) {
  const SweepOutcome trained = run(out, {"keep=[4, 2]"});
  const fs::path checkpoints = first / "train" / "checkpoints", given = temp / "given";
  const std::vector<std::string> settings = {"keep=[4, 2]",
                                             "finetuned=" + (checkpoints / "finetune").string(),
                                             "train.init=" + (checkpoints / "pretrain").string()};
  const SweepOutcome outcome = run(given, settings);
  EXPECT_FALSE(fs::exists(given / "seed5" / "train"));
  ASSERT_EQ(outcome.phases.size(), 1u);
  EXPECT_EQ(outcome.phases[0].name, "finetune");
  EXPECT_EQ(outcome.phases[0].accuracy, trained.phases[1].accuracy);
  // Pruned by comparison with train.init, and recovered, it is what it was in the first sweep.
  ASSERT_EQ(outcome.points.size(), trained.points.size());
  for (size_t i = 0; i < outcome.points.size(); ++i) {
    EXPECT_EQ(outcome.points[i].accuracy, trained.points[i].accuracy);
    EXPECT_EQ(outcome.points[i].accuracy_recovered, trained.points[i].accuracy_recovered);
  }
  EXPECT_NE(error_of([&] {
              run(given, {"keep=[4, 2]", settings[2]});
            }).find("'finetuned' was"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              run(temp / "x", {"finetuned=/nowhere", settings[2]});
            }).find("finetuned '/nowhere' is not there"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(temp / "x"));
  EXPECT_NE(error_of([&] { run(temp / "x", {settings[1]}); }).find("needs train.init"),
            std::string::npos);
}

TEST_F(PruneSweepRun, FindsClassesByTheirNamesInDataOfAnotherOrder) {
  const SweepOutcome trained = run(out, {"keep=[4, 2]"});
  const fs::path checkpoints = first / "train" / "checkpoints";
  const PruneSweepConfig config =
      config_of({"keep=[4, 2]", "finetuned=" + (checkpoints / "finetune").string(),
                 "train.init=" + (checkpoints / "pretrain").string()});
  ReproduceOptions options = options_for(temp / "swapped");
  options.open = [](std::string_view name, std::string_view split) {
    return with_classes_of(report_test::open_tiny(name, split), {"shade 1", "shade 0"});
  };
  SweepOutcome outcome;
  ASSERT_TRUE(run_prune_sweep(config, options, outcome));
  EXPECT_EQ(outcome.phases[0].accuracy, trained.phases[1].accuracy);
  ASSERT_EQ(outcome.points.size(), trained.points.size());
  for (size_t i = 0; i < outcome.points.size(); ++i) {
    EXPECT_EQ(outcome.points[i].accuracy, trained.points[i].accuracy);
    EXPECT_EQ(outcome.points[i].accuracy_recovered, trained.points[i].accuracy_recovered);
  }
  options = options_for(temp / "renamed");
  options.open = [](std::string_view name, std::string_view split) {
    DatasetInfo info = report_test::open_tiny(name, split)->info();
    info.classes = {"shade 0", "shade 11"};
    return make_memory_dataset(std::move(info), std::vector<uint8_t>(32), {0, 1});
  };
  EXPECT_EQ(error_of([&] { run_prune_sweep(config, options, outcome); }),
            "usage: " + (checkpoints / "finetune").string() +
                ": 'two' has a class 'shade 11', which the network does not have; did you mean "
                "'shade 1'?");
}

TEST_F(PruneSweepRun, WhatPruningSavesIsOfTheWholeNetwork) {
  const SweepOutcome outcome = run(out, {"keep=[2]"});
  ASSERT_EQ(outcome.sizes.size(), 2u);
  EXPECT_EQ(outcome.sizes[0].name, "keep4");
  const SweepPoint& whole = outcome.at("keep4", "random");
  EXPECT_EQ(whole.parameters - outcome.at("keep2", "random").parameters, 2 * 144);
  EXPECT_GT(whole.images_per_second, 0.0);
}

TEST_F(PruneSweepRun, LooksAtTheCalibrationImagesOnce) {
  auto reads = std::make_shared<int64_t>(0);
  ReproduceOptions options = options_for(out);
  options.open = [reads](std::string_view name, std::string_view split) {
    std::shared_ptr<const Dataset> data = report_test::open_tiny(name, split);
    if (split != "train" || name != "two") return data;
    return std::shared_ptr<const Dataset>(
        std::make_shared<train_test::WatchedDataset>(data, [reads] { ++*reads; }));
  };
  const auto reads_of = [&](const std::string& criteria) {
    SweepOutcome outcome;
    const int64_t before = *reads;
    EXPECT_TRUE(run_prune_sweep(config_of({"keep=[4, 3, 2]", "images=48", "export=null",
                                           "recover.steps=1", "criteria=" + criteria}),
                                options, outcome));
    return *reads - before;
  };
  reads_of("[\"random\"]");  // Trains, too.
  const int64_t without = reads_of("[\"magnitude\"]");
  EXPECT_EQ(reads_of("[\"reap\"]") - without, 48) << "for two networks";
}

TEST_F(PruneSweepRun, FiguresOfMoreRunsStandBesideNetworksThatAreMadeAsTheirs) {
  const auto report = [&](const std::string& change) {
    Experiment experiment{.name = "tiny", .kind = "prune-sweep", .description = "Two quarters."};
    Document document = Document::from_text(report_test::tiny_sweep(), "tiny.json");
    document.set("kept", Document::from_text(R"({"rows": [{"name": "keep2/random",
        "metric": "accuracy", "measured": 70.5, "std": 2.25, "runs": 5}]})",
                                             "kept.json")
                             .root());
    document.set("keep=[2]");
    document.set(change);
    experiment.config = document.root();
    const fs::path folder = temp / change;
    const std::string summary = reproduce(experiment, options_for(folder)).summary;
    EXPECT_EQ(summary.find("70.50 (2.25)") == std::string::npos,
              read_text(folder / "report.md").find("70.50 (2.25)") == std::string::npos);
    return summary;
  };
  EXPECT_NE(report("throughput.rounds=1").find("Kept from 5 runs"), std::string::npos);
  for (const char* change : {"recover.steps=1", "train.seed=9", "images=7", "whole=[]"}) {
    EXPECT_EQ(report(change).find("Kept from 5 runs"), std::string::npos) << change;
  }
}

TEST_F(PruneSweepRun, APapersValuesNameItsRowsAndMetrics) {
  const auto reproduced = [&](const std::string& paper) {
    Experiment experiment{.name = "tiny", .kind = "prune-sweep", .description = "Two quarters."};
    Document document = Document::from_text(report_test::tiny_sweep(), "tiny.json");
    for (const std::string& change : {std::string("keep=[2]"), "paper=" + paper}) {
      document.set(change);
    }
    experiment.config = document.root();
    return reproduce(experiment, options_for(out)).results;
  };
  const Results results = reproduced(R"({"keep2/random": {"flops_saved": [40, 100]}})");
  EXPECT_EQ(results.find("keep2/random", "flops_saved")->paper, 40.0);
  EXPECT_EQ(results.find("keep2/random", "flops_saved")->verdict(), "inside");
  EXPECT_FALSE(results.find("keep2/random", "accuracy")->paper);
  // What the sweep leaves out, as overrides do, is no mistake.
  EXPECT_EQ(reproduced(R"({"keep3/random": {"accuracy": 1}})").find("keep3/random", "accuracy"),
            nullptr);
  EXPECT_NE(error_of([&] {
              reproduced(R"({"keep2/radom": {"accuracy": 1}})");
            }).find("did you mean 'keep2/random'"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              reproduced(R"({"keep2/random": {"acuracy": 1}})");
            }).find("did you mean 'accuracy'"),
            std::string::npos);
}

TEST_F(PruneSweepRun, MoreCriteriaThanMarkersAreDrawn) {
  Experiment experiment{.name = "tiny", .kind = "prune-sweep", .description = "Two quarters."};
  Document document = Document::from_text(report_test::tiny_sweep(), "tiny.json");
  document.set("keep=[2]");
  document.set(R"(criteria=["router-norm-change", "router-magnitude", "magnitude", "importance",
                            "load", "frequency", "reap", "man", "random"])");
  experiment.config = document.root();
  reproduce(experiment, options_for(out));
  EXPECT_TRUE(fs::exists(out / "figure.png"));
}

TEST_F(PruneSweepRun, OtherSettingsDoNotMixWithWhatIsThere) {
  run(out, {"keep=[2]"});
  const std::string folder = fs::canonical(out).string();
  EXPECT_EQ(error_of([&] { run(out, {"train.phases.pretrain.steps=7"}); }),
            "usage: " + folder +
                ": cannot resume with other settings: 'phases.0.steps' was 30 and is 7 now; "
                "set back what changed or give another --out");
  EXPECT_EQ(error_of([&] { run(out, {"recover.steps=4"}); }),
            "usage: " + folder +
                ": cannot resume with other settings: 'recover.steps' was 3 and is 4 now; set back "
                "what changed or give another --out");
  EXPECT_NO_THROW(run(out, {"keep=[2]", "train.loader_threads=1"}));
}

TEST_F(PruneSweepRun, AFolderOfSomethingElseIsLeftAlone) {
  fs::create_directories(out);
  write_atomic(out / "config.json", R"({"model": {}})");
  const std::string error = error_of([&] { run(out); });
  EXPECT_NE(error.find("holds a config.json of something else"), std::string::npos) << error;
  EXPECT_EQ(read_text(out / "config.json"), R"({"model": {}})");
}

TEST_F(PruneSweepRun, MoreExpertsThanThereAreAreRefused) {
  EXPECT_EQ(error_of([&] { run(out, {"keep=[5, 2]"}); }), "usage: keep: 5 of 4 experts");
  // A token selects two.
  const std::string error = error_of([&] { run(out, {"keep=[1, 2]"}); });
  EXPECT_EQ(error.find("usage: "), 0u) << error;
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
  SweepOutcome outcome;
  const bool done = run_prune_sweep(config_of(), options, outcome);
  EXPECT_EQ(stop.number(), done ? 0 : SIGINT);
  return done;
}

TEST_F(PruneSweepRun, StoppedAnywhereItGoesOnToTheSameNumbers) {
  const fs::path whole = temp / "whole";
  const std::string expected = numbers(run(whole));
  // In pre-training, fine-tuning, evaluations, recoveries and timing.
  int64_t stops = 0;
  for (int64_t images = 10; !run_until(out, images); images += 37) {
    ASSERT_LT(++stops, 200);
  }
  EXPECT_GE(stops, 3);
  EXPECT_EQ(numbers(run(out)), expected);
  const fs::path weights = fs::path("checkpoints") / "recover" / "model.safetensors";
  for (const char* name : {"keep4", "keep3-random", "keep2-router-norm-change"}) {
    EXPECT_TRUE(read_text(first / name / weights) == read_text(whole / "seed5" / name / weights))
        << name;
  }
}

TEST_F(PruneSweepRun, ReproduceWritesResultsReportAndFigure) {
  Experiment experiment{.name = "tiny", .kind = "prune-sweep", .description = "Two quarters."};
  experiment.config = Document::from_text(report_test::tiny_sweep(), "tiny.json").root();
  const Reproduction done = reproduce(experiment, options_for(out));
  EXPECT_EQ(done.signal, 0);
  const auto written = nlohmann::ordered_json::parse(read_text(out / "results.json"));
  EXPECT_EQ(written, to_json(done.results));
  EXPECT_EQ(written.at("experiment"), "tiny");
  EXPECT_EQ(written.at("rows").size(), 2u + 6u * 11u + 1u);
  EXPECT_EQ(read_text(out / "report.md").find("# tiny\n"), 0u);
  EXPECT_TRUE(fs::exists(out / "figure.svg"));
  EXPECT_TRUE(fs::exists(out / "figure.png"));
  EXPECT_NE(done.summary.find((out / "model.ts.pt").string()), std::string::npos);
}

}  // namespace
}  // namespace moesaic::sweep_test
