// SPDX-License-Identifier: Apache-2.0
// The work that the software exists for, subcommand by subcommand.
#include <fmt/format.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <set>
#include <sstream>

#include "integration/program.h"
#include "integration/readme.h"
#include "moesaic/base/file.h"
#include "moesaic/base/path.h"
#include "moesaic/base/process.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/models/model.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

class Workflow : public ProgramTest {
 protected:
  std::string phase(const std::string& name) const {
    return (smoke_run() / "checkpoints" / name).string();
  }
  void write_images(const std::string& name, int64_t count) const {
    write_tensors(path(name),
                  {{"images", torch::linspace(-1, 2, count * 28 * 28).view({count, 1, 28, 28})}});
  }
};

TEST_F(Workflow, TrainLeavesWhatTheReadmePromises) {
  NEEDS_FASHION_MNIST();
  const fs::path run = smoke_run();
  for (const char* name : {"config.json", "metrics.jsonl", "best/MANIFEST.json"}) {
    EXPECT_TRUE(fs::exists(run / name)) << name;
  }
  for (const char* name : {"pretrain", "finetune", "prune", "recover"}) {
    EXPECT_TRUE(fs::exists(run / "checkpoints" / name / "MANIFEST.json")) << name;
  }
  if (!find_program("gnuplot").empty()) {
    EXPECT_TRUE(fs::exists(run / "figure.png"));
  }
  bool events = false;
  for (const auto& entry : fs::directory_iterator(run)) {
    events |= entry.path().filename().string().starts_with("events.out.tfevents.");
  }
  EXPECT_TRUE(events);
}

TEST_F(Workflow, ARecipeMayExtendAnother) {
  const std::string smoke = resource("models/clusters/recipes/smoke.json").string();
  write("mine.json", fmt::format(R"({{"extends": "{}", "seed": 7, "name": "mine"}})", smoke));
  write("wrong.json", R"({"extends": "min.json"})");
  must_succeed(
      {"train", text_path("mine.json"), "phases.train.steps=2", "--out", text_path("run")});
  const auto config = nlohmann::json::parse(read_text(path("run") / "config.json"));
  EXPECT_EQ(config["seed"], 7);
  EXPECT_EQ(config["phases"][0]["steps"], 2);
  EXPECT_EQ(config["model"]["name"], "cluster-moe");
  EXPECT_FALSE(config.contains("extends"));
  expect_usage_error({"train", text_path("wrong.json")},
                     "no such file; did you mean 'mine.json'?");  // As it is written there.
}

TEST_F(Workflow, TheRecipeOfTheFrontPageTrains) {
  NEEDS_FASHION_MNIST();
  fs::create_directories(path("checkpoints/shoes/checkpoints"));
  fs::copy(phase("pretrain"), path("checkpoints/shoes/checkpoints/pretrain"),
           fs::copy_options::recursive);
  const std::string page = read_text(source_path("README.md"));
  const size_t begin = page.find("```json\n");
  ASSERT_NE(begin, std::string::npos);
  write("shoes.json", page.substr(begin + 8, page.find("```", begin + 8) - begin - 8));
  must_succeed(
      run_here("train shoes.json phases.finetune.num_samples=640 phases.finetune.epochs=1 "
               "phases.recover.steps=2 --out run"));
  EXPECT_LT(load_model(path("run/checkpoints/recover"))->num_parameters(),
            load_model(path("run/checkpoints/finetune"))->num_parameters());
  expect_usage_error({"train", "--resume", "--out", text_path("run")},
                     "to resume, give " + text_path("run") + "/config.json");
}

TEST_F(Workflow, EvalPrintsOneJsonDocument) {
  NEEDS_FASHION_MNIST();
  const auto result = must_succeed({"eval", phase("finetune"), "--json"});
  const auto report = result.json();
  EXPECT_EQ(report["images"], 3000);
  EXPECT_GT(report["accuracy"].get<double>(), 33.0);
  EXPECT_FALSE(report.contains("top5_accuracy"));  // of three classes
  EXPECT_LT(report["calibration_error"].get<double>(), 1.0);
  EXPECT_FALSE(report["routing"].empty());
}

TEST_F(Workflow, PruneRemovesExpertsInTheFile) {
  NEEDS_FASHION_MNIST();
  const auto result =
      must_succeed({"prune", "--pretrained", phase("pretrain"), "--finetuned", phase("finetune"),
                    "--keep", "0.5", "--out", text_path("pruned"), "--json"});
  const auto plan = result.json();
  EXPECT_EQ(plan["criterion"], "router-norm-change");
  ASSERT_FALSE(plan["layers"].empty());
  const auto before = load_model(phase("finetune")), after = load_model(path("pruned"));
  EXPECT_LT(after->num_parameters(), before->num_parameters());
  EXPECT_LT(fs::file_size(path("pruned") / "model.safetensors"),
            fs::file_size(fs::path(phase("finetune")) / "model.safetensors"));
  for (const auto& layer : plan["layers"]) {
    EXPECT_EQ(layer["kept"].size() * 2, layer["experts"].get<size_t>());
    EXPECT_EQ(layer["scores"].size(), layer["experts"].get<size_t>());
  }
  const auto evaluated = must_succeed({"eval", text_path("pruned"), "--json"});
  EXPECT_EQ(evaluated.json()["parameters"], after->num_parameters());
}

TEST_F(Workflow, PredictGivesLogitsAndTheRouting) {
  NEEDS_FASHION_MNIST();
  write_images("in.safetensors", 5);
  must_succeed({"predict", phase("recover"), "--input", text_path("in.safetensors"), "--output",
                text_path("out.safetensors"), "--routing"});
  const auto model = load_model(phase("recover"));
  const torch::NoGradGuard no_grad;
  const auto wanted = model->forward(read_tensors(path("in.safetensors")).at("images"));
  const auto found = read_tensors(path("out.safetensors"));
  EXPECT_TRUE(torch::allclose(found.at("logits"), wanted.logits, 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(found.at("pre_logits"), wanted.pre_logits, 1e-5, 1e-6));
  for (const auto& record : wanted.routings) {
    const std::string name = "routing." + std::to_string(record.block);
    EXPECT_TRUE(torch::allclose(found.at(name + ".logits"), record.logits_TE, 1e-5, 1e-6));
    EXPECT_EQ(found.at(name + ".combine").sizes(), record.logits_TE.sizes());
  }
}

TEST_F(Workflow, TorchScriptEqualsPredictHereAndInStockPython) {
  NEEDS_FASHION_MNIST();
  for (const char* name : {"finetune", "recover"}) {
    must_succeed({"export", phase(name), "--format", "torchscript", "--out",
                  text_path(std::string(name) + ".ts.pt")});
    write_images("in.safetensors", 3);
    const at::Tensor images = read_tensors(path("in.safetensors")).at("images");
    const torch::NoGradGuard no_grad;
    auto script = torch::jit::load(text_path(std::string(name) + ".ts.pt"));
    const at::Tensor logits = script.forward({images}).toTensor();
    EXPECT_TRUE(
        torch::allclose(logits, load_model(phase(name))->forward(images).logits, 1e-5, 1e-5));
  }
  const char* venv = std::getenv("MOESAIC_VENV");
  const fs::path python = fs::path(venv == nullptr ? "" : venv) / "bin/python";
  if (!fs::exists(python)) GTEST_SKIP() << "needs MOESAIC_VENV with Python's torch";
  const auto result =
      run_command({python.string(), "-W", "ignore", "-c",
                   "import sys, torch; m = torch.jit.load(sys.argv[1]); "
                   "print([list(m(torch.zeros(b, 1, 28, 28)).shape) for b in (1, 4)])",
                   text_path("recover.ts.pt")});
  EXPECT_EQ(result.out, "[[1, 3], [4, 3]]\n") << result.err;
}

TEST_F(Workflow, InterruptedTrainingResumesToTheSameBits) {
  NEEDS_FASHION_MNIST();
  ProgramResult stopped;
  // A machine that does other things may let a run end before its signal comes.
  for (int wait = 300; wait > 0 && stopped.exit_code == 0; wait /= 2) {
    fs::remove_all(path("my run"));
    stopped = run_program(
        {"train", smoke_recipe(), "--out", text_path("my run")},
        {.interrupt_after_ms = wait, .interrupt_when = path("my run") / "metrics.jsonl"});
  }
  ASSERT_EQ(stopped.exit_code, 130) << stopped.err;
  const size_t command = stopped.err.find("resume with: ");
  ASSERT_NE(command, std::string::npos) << stopped.err;
  // As a user would: copied into a shell.
  must_succeed(run_command({"sh", "-c", stopped.err.substr(command + 13)}));
  const auto wanted = read_tensors(smoke_run() / "checkpoints/recover/model.safetensors");
  const auto found = read_tensors(path("my run") / "checkpoints/recover/model.safetensors");
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : wanted)
    EXPECT_TRUE(torch::equal(found.at(name), tensor)) << name;
}

TEST_F(Workflow, InspectShowsAndCompares) {
  NEEDS_FASHION_MNIST();
  const auto one = run_program({"inspect", phase("prune"), "--json"}).json();
  EXPECT_EQ(one["kind"], "checkpoint");
  EXPECT_FALSE(one["moe"][0]["kept"].is_null());
  const auto two = run_program({"inspect", phase("pretrain"), phase("finetune"), "--json"}).json();
  EXPECT_FALSE(two["changed"].empty());
  EXPECT_FALSE(two["config"].empty());
  const auto pruned = run_program({"inspect", phase("finetune"), phase("prune")});
  EXPECT_THAT(pruned.out, HasSubstr("/encoder/moe/kept_experts/1: all and ["));
  EXPECT_THAT(pruned.out, Not(HasSubstr("null")));
}

TEST(Verbs, DoctorListAndHelpWork) {
  const auto doctor = must_succeed({"doctor"});
  EXPECT_THAT(doctor.out, HasSubstr("gnuplot"));
  for (const char* kind :
       {"models", "datasets", "experiments", "criteria", "recipes", "checkpoints", "objectives",
        "probes", "phases", "formats", "settings"}) {
    const auto result = must_succeed({"list", kind, "--json"});
    EXPECT_FALSE(result.json().empty()) << kind;
  }
  for (const char* verb : {"train", "eval", "predict", "import", "prune", "export", "inspect",
                           "data", "list", "reproduce", "compare", "doctor"}) {
    must_succeed({verb, "--help"});
  }
}

TEST(Verbs, HelpOfTrainFitsAScreenAndTellsTheRestOnRequest) {
  const auto widest = [](const std::string& text) {
    size_t max = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) max = std::max(max, line.size());
    return max;
  };
  const auto help = [&](const Strings& words) {
    const auto result = must_succeed(joined({"train", "--help"}, words));
    EXPECT_LE(widest(result.out), 100U) << result.out;
    return result.out;
  };
  const std::string screen = help({});
  EXPECT_LE(std::count(screen.begin(), screen.end(), '\n'), 52) << screen;
  const std::string common = screen.substr(screen.find("Common settings"));
  EXPECT_THAT(common, Not(HasSubstr(" ...\n")));  // No phrase is cut.
  for (const char* key : {"phases.N.optimizer.lr ", "seed ", "phases.N.data ", "--resume"}) {
    EXPECT_THAT(screen, HasSubstr(key)) << key;
  }
  EXPECT_THAT(help({"phases.optimizer"}), HasSubstr("phases.N.optimizer.betas  list of number"));
  EXPECT_THAT(help({"model", "vmoe"}), HasSubstr("model.encoder.moe.num_experts"));
  EXPECT_THAT(help({"model.router"}), HasSubstr("Of a cluster-moe"));
  help({"phases"});
  for (const char* const family : {"cluster-moe", "e3", "image-moe"}) help({"model", family});
  expect_usage_error({"train", "--help", "phases.optimiser.weight_decay"},
                     "did you mean 'phases.N.optimizer.weight_decay'?");
  expect_usage_error({"train", "--help", "model", "vmo"}, "did you mean 'vmoe'?");
}

TEST(Verbs, ListPartsFamiliesFromPresets) {
  const std::string listed = run_program({"list", "models"}).out;
  const size_t families = listed.find("families"), presets = listed.find("presets");
  EXPECT_LT(families, listed.find("\n  vmoe "));
  EXPECT_LT(listed.find("\n  vmoe "), presets);
  EXPECT_LT(presets, listed.find("\n  vmoe/b16-every2 "));
}

TEST_F(Workflow, APlanSaysThatThereAreNoExperts) {
  NEEDS_FASHION_MNIST();
  const Strings plan = {"train", smoke_recipe(), "--dry-run"};
  EXPECT_THAT(run_program(joined(plan, {"model.encoder.moe.layers=[]", "phases.prune.on_entry={}",
                                        "phases.0.aux_losses={}"}))
                  .out,
              HasSubstr("experts       none"));
  EXPECT_THAT(run_program(plan).out, Not(HasSubstr("experts       none")));
}

// On a terminal, which script(1) makes.
TEST_F(Workflow, TestingHasABarOfItsOwn) {
  if (run_command({"script", "-qec", "true", "/dev/null"}).exit_code != 0)
    GTEST_SKIP() << "needs script(1) and a terminal to make";
  const std::string train = shell_quoted(MOESAIC_PROGRAM) + " train " +
                            shell_quoted(recipe("clusters/recipes/smoke.json")) + " --out " +
                            shell_quoted(text_path("run"));
  const auto shown = must_succeed(run_command({"script", "-qec", train, "/dev/null"}));
  EXPECT_THAT(shown.out, HasSubstr("testing "));
}

TEST_F(Workflow, AHangUpSavesAsOtherSignalsDo) {
  NEEDS_FASHION_MNIST();
  std::signal(SIGHUP, SIG_DFL);  // What nohup ignores stays ignored by what is started.
  // Longer than any machine waits with the signal.
  const auto stopped = run_program(
      {"train", smoke_recipe(), "phases.pretrain.steps=1000000", "--out", text_path("run")},
      {.interrupt_after_ms = 0, .interrupt_when = path("run") / "metrics.jsonl", .signal = SIGHUP});
  EXPECT_EQ(stopped.exit_code, 128 + SIGHUP) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("saved; resume with: "));
}

TEST_F(Workflow, ExportSaysWhatItWroteAndRefusesEmptyShards) {
  NEEDS_FASHION_MNIST();
  const auto written = run_program(
      {"export", phase("finetune"), "--format", "torchscript", "--out", text_path("model.pt")});
  EXPECT_THAT(written.err, HasSubstr("wrote " + text_path("model.pt") + ", "));
  expect_usage_error({"export", phase("finetune"), "--format", "vmoe", "--out", text_path("model"),
                      "--shards", "3000"},
                     "would leave some empty; choose 1 to ");
  EXPECT_FALSE(fs::exists(path("model.index")));
}

TEST_F(Workflow, InspectAndPruneCountTheSameBytes) {
  NEEDS_FASHION_MNIST();
  const auto pruned =
      run_program({"prune", "--pretrained", phase("pretrain"), "--finetuned", phase("finetune"),
                   "--keep", "0.5", "--out", text_path("pruned")});
  const auto inspected = run_program({"inspect", text_path("pruned"), "--json"}).json();
  EXPECT_THAT(pruned.out,
              HasSubstr(fmt::format("-> {:>16}  (", inspected["bytes"].get<int64_t>())));
  EXPECT_GT(inspected["file_bytes"], inspected["bytes"]);
}

// Without weights to start from, without most of the data, and without the memory that it takes.
TEST(Verbs, EveryRecipePassesADryRun) {
  bool skipped = false;
  for (const std::string recipe : run_program({"list", "recipes", "--json"}).json()) {
    const bool needs_files = read_text(recipe).find("fashion-mnist") != std::string::npos;
    if (needs_files && !have_fashion_mnist()) {
      skipped = true;
      continue;
    }
    const auto result = must_succeed({"train", recipe, "--dry-run"});
    std::set<std::string> said;
    std::istringstream warnings(result.err);
    for (std::string line; std::getline(warnings, line);) {
      EXPECT_TRUE(said.insert(line).second) << recipe << " warns twice: " << line;
    }
    for (const char* line : {"parameters ", "FLOPs/image ", "memory ", "activations"}) {
      EXPECT_THAT(result.out, HasSubstr(line)) << recipe;
    }
  }
  if (skipped) GTEST_SKIP() << "needs Fashion-MNIST: moesaic data fetch fashion-mnist";
}

}  // namespace
}  // namespace moesaic::testing
