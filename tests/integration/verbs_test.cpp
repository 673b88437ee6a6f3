// SPDX-License-Identifier: Apache-2.0
// What eval and bench say of a network of one's own, and where they compute.
#include <fmt/format.h>

#include <sstream>

#include "integration/program.h"
#include "moesaic/base/file.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

/// A run of generated data.
class OwnNetwork : public ProgramTest {
 protected:
  OwnNetwork() {
    must_succeed({"train", recipe("clusters/recipes/figure1-cubic.json"), "phases.0.steps=3",
                  "--out", run()});
  }
  std::string run() const { return text_path("run"); }
};

TEST_F(OwnNetwork, IsEvaluatedByClassWithAConfusionMatrix) {
  const auto result = must_succeed({"eval", run(), "--json", "--confusion", text_path("a.csv"),
                                    "--confusion", text_path("a.png")});
  const auto report = result.json();
  ASSERT_EQ(report["per_class"].size(), report["classes"].size());
  int images = 0, correct = 0;
  std::istringstream table(read_text(path("a.csv")));
  std::string line;
  std::getline(table, line);
  for (size_t i = 0; i < report["per_class"].size(); ++i) {
    const auto& found = report["per_class"][i];
    EXPECT_EQ(found["name"], report["classes"][i]);
    images += found["images"].get<int>();
    correct += found["correct"].get<int>();
    EXPECT_DOUBLE_EQ(found["accuracy"],
                     100.0 * found["correct"].get<double>() / found["images"].get<double>());
    std::getline(table, line);
    Strings fields;
    std::istringstream cells(line);
    for (std::string field; std::getline(cells, field, ',');) fields.push_back(field);
    ASSERT_EQ(fields.size(), report["classes"].size() + 1);
    EXPECT_EQ(fields[0], found["name"]);
    EXPECT_EQ(fields[1 + i], found["correct"].dump());
  }
  EXPECT_EQ(images, report["images"]);
  EXPECT_DOUBLE_EQ(report["accuracy"], 100.0 * correct / images);
  EXPECT_TRUE(fs::exists(path("a.png")) && fs::exists(path("a.gp")) && fs::exists(path("a.tsv")));
  const auto text = run_program({"eval", run()});
  EXPECT_THAT(text.out, HasSubstr(fmt::format("\naccuracy by class\n  {:6.2f} % of",
                                              report["per_class"][0]["accuracy"].get<double>())));
}

TEST_F(OwnNetwork, IsComparedWithOthersInATable) {
  const auto text = must_succeed({"eval", run(), run() + "/best"});
  EXPECT_THAT(text.out, AllOf(StartsWith("checkpoint "), HasSubstr(run() + "/checkpoints/step_3  "),
                              HasSubstr(run() + "/best  "), HasSubstr(" accuracy  parameters  ")));
  const auto both = run_program({"eval", run(), run() + "/best", "--json"}).json();
  ASSERT_EQ(both.size(), 2U);
  const auto alone = run_program({"eval", run() + "/best", "--json"}).json();
  EXPECT_EQ(both[1]["accuracy"], alone["accuracy"]);
  EXPECT_EQ(both[1]["checkpoint"], alone["checkpoint"]);
  expect_usage_error({"eval", run(), run(), "--confusion", text_path("a.csv")},
                     "--tsne show one checkpoint, not 2; name one");
}

TEST_F(OwnNetwork, HasItsConfusionMatrixRefusedBeforeTheEvaluation) {
  write("there.csv", "");
  for (const auto& [file, text] :
       std::vector<std::pair<std::string, std::string>>{{"there.csv", "already exists"},
                                                        {"a.pdf", ".png, .svg or .csv"},
                                                        {"none/a.png", "none"}}) {
    const auto result = run_program({"eval", run(), "--confusion", text_path(file)});
    expect_one_line_error(result, 2, text);
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(OwnNetwork, GivesItsFeaturesAndAFewShotProbeOfThem) {
  must_succeed({"eval", run(), "--features", text_path("f.safetensors")});
  EXPECT_TRUE(fs::exists(path("f.safetensors")));
  const auto probed = must_succeed({"eval", run(), run() + "/best", "--shots", "1,4",
                                    "--shot-seeds", "2", "--shot-l2", "1,1024", "--json"});
  const auto found = probed.json()[1]["few_shot"];
  for (const char* shots : {"1-shot", "4-shot"}) {
    EXPECT_GT(found[shots], 0.0);
    const auto l2 = found[std::string(shots) + "_l2"].get<double>();
    EXPECT_TRUE(l2 == 1.0 || l2 == 1024.0) << l2;
  }
  EXPECT_THAT(run_program({"eval", run(), "--shots", "1", "--shot-l2", "1"}).out,
              AllOf(HasSubstr("\n1-shot "), Not(HasSubstr("\naccuracy "))));
}

TEST_F(OwnNetwork, RefusesFeaturesMistakesAndShotsInOneLine) {
  const auto refuse = [&](Strings options, int code, const std::string& text) {
    options.insert(options.begin(), {"eval", run()});
    const auto result = run_program(options);
    EXPECT_EQ(result.exit_code, code);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(text));
  };
  write("there.safetensors", "");
  refuse({"--features", text_path("there.safetensors")}, 2, "already exists");
  refuse({"--features", "/dev/full/f.safetensors"}, 2, "'/dev/full' is not a folder");
  refuse({"--features", "/proc/f.safetensors"}, 1, "/proc: cannot write here");
  refuse({"--mistakes", text_path("a.jpg")}, 2, "must end in .png, found");
  refuse({"--mistakes", text_path("a.png")}, 2, "are not images of classes");
  refuse({"--shots", "1000000"}, 2, "to train on, not 1000000; choose at most ");
  refuse({"--shots", "1", "--split", "train"}, 2, "choose --split validation or test");
  refuse({"--shots", "1", "--mistakes", text_path("a.png")}, 2, "--mistakes");
  refuse({"--shot-l2", "1"}, 2, "--shots");
  refuse({"--real-labels", text_path("real.json")}, 2, "real.json");
  write("real.json", "[[0], [1]]");
  for (const char* option : {"--real-labels", "--real"}) {
    refuse({option, text_path("real.json")}, 2, "it has labels of 2 images");
  }
  refuse({"--real", text_path("real.json")}, 2, "'--real' is called '--real-labels' now");
  refuse({"--real", "a.json", "--real-labels", "b.json"}, 2, "exclude one another");
}

TEST_F(OwnNetwork, IsNotComputedInInt8WhereExpertsAreNoMlps) {
  for (const char* verb : {"eval", "bench"}) {
    expect_usage_error({verb, run(), "--precision", "int8"},
                       "precision int8 is for experts that are MLPs; leave it out");
  }
  expect_usage_error(
      {"export", run(), "--format", "safetensors", "--out", text_path("out"), "--precision",
       "int8"},
      "export: --precision int8 is for the formats onnx, pt2, pytorch; leave it out");
}

class Int8 : public ProgramTest {};

TEST_F(Int8, IsRefusedInOneLineWhereTheProcessorHasNoProductForIt) {
  NEEDS_FASHION_MNIST();
  for (const char* verb : {"eval", "bench"}) {
    const auto refused = run_program({verb, smoke_run().string(), "--precision", "int8"},
                                     {.environment = {"MOESAIC_CPU=generic"}});
    expect_one_line_error(refused, 2, "precision int8 needs AVX512-VNNI or AMX");
  }
}

TEST_F(OwnNetwork, IsTimedByBatchSize) {
  const auto result = must_succeed({"bench", run(), "--batch-sizes", "4,1", "--seconds", "0",
                                    "--precision", "bfloat16", "--json"});
  const auto report = result.json();
  EXPECT_EQ(report["precision"], "bfloat16");
  EXPECT_EQ(report["device"], "cpu");
  EXPECT_GT(report["threads"], 0);
  EXPECT_NE(report["processor"], "");
  ASSERT_EQ(report["rows"].size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    const auto& row = report["rows"][i];
    EXPECT_EQ(row["batch_size"], i == 0 ? 1 : 4);
    EXPECT_GT(row["images_per_second"], 0.0);
    EXPECT_GT(row["median_ms"], 0.0);
    EXPECT_GT(row["bytes"], report["weight_bytes"]);
  }
  const auto table = must_succeed({"bench", run(), "--batch-sizes", "2", "--seconds", "0"});
  for (const char* text : {"processor", ", float32\n", "images/s", "memory", " parameters"}) {
    EXPECT_THAT(table.out, HasSubstr(text));
  }
  expect_usage_error({"bench", run(), "--batch-sizes", "0"}, "between 1 and");
  expect_usage_error({"bench", "vmoe", "--seconds", "1"},
                     "--seconds is for a checkpoint, but 'vmoe' is a benchmark");
  expect_usage_error({"bench", text_path("none")}, "none");
}

class Compare : public ProgramTest {};

TEST_F(Compare, PrintsDifferencesOfRowsInPairsOfRuns) {
  write("a.json", R"({"experiment": "demo", "scale": "quick", "rows": [
    {"name": "wide, deep", "metric": "accuracy", "values": {"1": 90, "2": 91, "3": 95}},
    {"name": "small", "metric": "accuracy", "values": {"1": 91, "2": 94, "3": 97}}]})");
  const auto text =
      must_succeed({"compare", text_path("a.json"), "--rows", "wide, deep", "--rows", "small"});
  EXPECT_EQ(text.out,
            "row    against     metric    n  difference  std. error     95 % interval\n"
            "small  wide, deep  accuracy  3           2      0.5774  -0.4841 to 4.484\n");
  const auto json = run_program({"compare", text_path("a.json"), text_path("a.json"), "--rows",
                                 "small", "--metric", "accuracy", "--json"})
                        .json();
  ASSERT_EQ(json.size(), 1U);
  EXPECT_EQ(json[0]["against"], text_path("a.json"));
  EXPECT_EQ(json[0]["standard_error"], 0.0);
  expect_usage_error({"compare", text_path("a.json"), "--rows", "small,smal"},
                     "unknown row 'smal'; did you mean 'small'?");
  write("b.json", "{\"rows\": [}");
  expect_one_line_error(run_program({"compare", text_path("b.json"), "--rows", "a,b"}), 1,
                        "b.json");
}

// Without the papers' data and checkpoints, and without the memory that they take.
TEST(Verbs, EveryExperimentPassesADryRun) {
  for (const std::string name : run_program({"list", "experiments", "--json"}).json()) {
    if (!have_fashion_mnist() && name == "quickstart") continue;
    for (const std::string scale : {"paper", "quick"}) {
      const auto result = must_succeed({"reproduce", name, "--dry-run", "--scale", scale});
      EXPECT_THAT(result.out, HasSubstr("experiment    " + name + ", scale " + scale + "\n"));
      EXPECT_FALSE(fs::exists("checkpoints/" + name));
    }
  }
  for (const char* name : {"pruning/vmoe-imagenet", "pruning/e3-cifar100"}) {
    const auto released = run_program({"reproduce", name, "--dry-run"});
    EXPECT_THAT(released.out, HasSubstr("; nothing is trained before pruning")) << name;
    EXPECT_THAT(released.out, Not(HasSubstr("finetune:"))) << name;
    for (const auto& more : {Strings{"finetuned="}, {"--scale", "quick"}}) {
      EXPECT_THAT(run_program(joined({"reproduce", name, "--dry-run"}, more)).out,
                  Not(HasSubstr("nothing is trained")))
          << name;
    }
  }
  const auto sweep = run_program({"reproduce", "pruning/vmoe-cifar10", "--dry-run"});
  EXPECT_THAT(sweep.out, HasSubstr("37 of each seed"));  // six numbers by six criteria, and one
  const auto choices =
      run_program({"reproduce", "pruning/vmoe-cifar10", "keep=[8, 4]", R"(per_layer=[
       {"name": "all-but-9", "keep": {"count": 4, "exclude_blocks": [9]}},
       {"name": "best", "keep": {"fraction": 0.5, "scope": "network"}}])",
                   "replace=mean", "--dry-run"});
  EXPECT_THAT(choices.out, HasSubstr("19 of each seed"));  // three sizes by six criteria, and one
  EXPECT_THAT(choices.out, HasSubstr("by layer      all-but-9 (4, 4, 4, 4, 8, 4)\n"));
  // Scores decide how many stay in which layer.
  EXPECT_THAT(choices.out, HasSubstr("by layer      best\n"));
  EXPECT_THAT(choices.out, ::testing::ContainsRegex("\nall-but-9 \\(4, 4, 4, 4, 8, 4\\) +33\\.2 "));
  EXPECT_THAT(choices.out, ::testing::ContainsRegex("\nbest +39\\.9 "));
  // Tokens that selected a removed expert select another: as many rows as before.
  const auto rerouted = run_program({"reproduce", "pruning/vmoe-cifar10", "keep=[8, 4]",
                                     R"(criteria=["random.reroute", "random"])", "--dry-run"});
  EXPECT_THAT(rerouted.out, ::testing::ContainsRegex("\n4 of 8 +39\\.9 +- +0\\.0 "));
  // Each replacement has its table.
  EXPECT_LT(rerouted.out.find("\nreplace       reroute\n"),
            rerouted.out.find("\nreplace       nothing\n"));
  EXPECT_THAT(rerouted.out,
              ::testing::ContainsRegex("nothing\n[^\n]*\n[^\n]*\n4 of 8 +39\\.9 +- +24\\.6 "));
  const auto ensemble = run_program(
      {"reproduce", "pruning/e3-cifar10", R"(criteria=["random.reroute"])", "--dry-run"});
  EXPECT_EQ(ensemble.exit_code, 2);
  EXPECT_THAT(
      ensemble.err,
      HasSubstr("argument 'criteria=[\"random.reroute\"]': criterion 'random.reroute': networks of "
                "the family 'e3' cannot reroute tokens; choose the replacement 'mean' or "
                "'nothing'"));
  const auto nine = run_program({"reproduce", "pruning/vmoe-cifar10", "keep=[9]", "--dry-run"});
  EXPECT_EQ(nine.exit_code, 2);
  EXPECT_THAT(
      nine.err,
      HasSubstr(
          "error: argument 'keep=[9]': a layer cannot keep 9 of its 8 experts; choose at most 8"));
}

// The paper prints 60, 35, 41, 35 and 45 % of the parameters, and 40, 14 and 15 % of the FLOPs.
TEST(Verbs, ADryRunOfASweepTellsWhatFollowsFromShapes) {
  for (const auto& [name, row] :
       {std::pair("vmoe-cifar10", "\n2 of 8 +59\\.8 +60 +36\\.9 +44\\.5 +40\n"),
        std::pair("vmoe-cifar10-exclude-blocks", "\n4 of 8 +33\\.2 +35 +20\\.5 +24\\.7 +-\n"),
        std::pair("vmoe-cifar100", "\n4 of 8 +39\\.9 +41 +24\\.6 +29\\.7 +-\n"),
        std::pair("vmoe-imagenet", "\n4 of 8 +33\\.1 +35 +18\\.9 +23\\.2 +14\n"),
        std::pair("e3-cifar10", "\n1 of 4 +44\\.6 +45 +17\\.3 +23\\.3 +-\n"),
        std::pair("e3-cifar100", "\n1 of 4 +44\\.6 +45 +17\\.3 +23\\.3 +15\n")}) {
    const auto plan = run_program({"reproduce", std::string("pruning/") + name, "--dry-run"});
    EXPECT_THAT(plan.out, ::testing::ContainsRegex(row)) << name;
    EXPECT_THAT(plan.out,
                ::testing::ContainsRegex("\n(8 of 8|4 of 4) +0\\.0 +- +0\\.0 +0\\.0 +-\n"))
        << name;
  }
}

TEST_F(OwnNetwork, IsTakenToADeviceThatIsThere) {
  const std::string out = text_path("out");
  const std::vector<Strings> verbs = {
      {"eval", run()},
      {"bench", run()},
      {"predict", run(), "--input", out, "--output", out},
      {"prune", "--finetuned", run(), "--criterion", "random", "--keep", "2", "--out", out},
      {"reproduce", "quickstart", "--out", out},
      {"train", smoke_recipe(), "--out", out}};
  for (Strings verb : verbs) {
    verb.insert(verb.end(), {"--device", "tpu"});
    const auto unknown = run_program(verb);
    expect_one_line_error(unknown, 2, "unknown device 'tpu'; choose one of cpu, cuda");
    EXPECT_THAT(unknown.err, HasSubstr("(see moesaic " + verb.front() + " --help)"));
    verb.back() = "cuda";
    const auto absent = run_program(verb, {.environment = {"CUDA_VISIBLE_DEVICES="}});
    expect_one_line_error(absent, 2, "device cuda: ");
    EXPECT_FALSE(fs::exists(out));
  }
  must_succeed({"eval", run(), "--device", "cpu"});
}

}  // namespace
}  // namespace moesaic::testing
