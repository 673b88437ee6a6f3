// SPDX-License-Identifier: Apache-2.0
// Mixtures of convolutional networks on images and on the same rotated, from the command line.
#include <fmt/format.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <sstream>

#include "integration/program.h"
#include "moesaic/checkpoint/tensors.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

class Images : public ProgramTest {
 protected:
  Images() : options_{.environment = {"MOESAIC_DATA=" + text_path("data")}} {
    std::filesystem::create_directories(path("data/mini"));
    write("data/mini/train.bin", records(40));
    write("data/mini/test.bin", records(12));
    write("mini.json", R"({"name": "mini", "description": "bright or dark", "format": "cifar",
        "classes": ["dark", "bright"], "num_images": {"train": 40, "test": 12},
        "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2], "files": {
          "train_1": {"name": "train.bin", "size": 122920},
          "test_1": {"name": "test.bin", "size": 36876}}})");
    write("mini-rotate.json", R"({"name": "mini-rotate", "base": ")" + text_path("mini.json") +
                                  R"(", "rotate": {"crop": 24}})");
    write("run.json", R"({"name": "images", "seed": 3, "checkpoint_every": 0,
        "model": {"name": "image-moe", "expert": "resnet18", "num_experts": 2, "num_classes": 2,
                  "width": 0.05, "router": {}},
        "phases": [{"name": "train", "data": ")" +
                          text_path("mini-rotate.json") + R"(", "batch_size": 16, "steps": 3,
          "loss": "softmax_twice", "aux_losses": {"switch_balance": 0.001},
          "optimizer": {"name": "sgd", "lr": 1e-4, "momentum": 0.9, "l2": 5e-4},
          "optimizers": [{"parameters": ["^moe.experts"],
            "optimizer": {"name": "normalized_sgd", "lr": 0.01, "momentum": 0.9, "l2": 5e-4}}],
          "schedule": {"name": "constant"}, "augment": {"flip": true, "blur": {}}}]})");
  }

  /// Stripes across or down, dark or bright by turns.
  static std::string records(int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      bytes += static_cast<char>(i % 2);
      for (int pixel = 0; pixel < 3072; ++pixel) {
        bytes += static_cast<char>(60 + 100 * (i % 2) + 40 * (pixel / 32 % 4 / 2));
      }
    }
    return bytes;
  }

  ProgramOptions options_;
};

TEST_F(Images, AreTrainedEvaluatedByClassAndGroupPredictedAndExported) {
  must_succeed({"train", text_path("run.json"), "--out", text_path("run")}, options_);
  const auto evaluated = must_succeed({"eval", text_path("run"), "--json"}, options_);
  const auto report = evaluated.json();
  EXPECT_EQ(report["images"], 24);
  const auto layer = report["routing"][0];
  ASSERT_EQ(layer["dispatch"].size(), 2U);        // original, rotated
  ASSERT_EQ(layer["group_dispatch"].size(), 2U);  // dark, bright
  for (const char* kind : {"dispatch", "group_dispatch"}) {
    for (const auto& row : layer[kind]) EXPECT_EQ(row[0].get<int>() + row[1].get<int>(), 12);
  }
  EXPECT_TRUE(layer.contains("group_dispatch_entropy"));
  EXPECT_EQ(report["classes"].dump(), R"(["original","rotated"])");
  EXPECT_EQ(report["groups"].dump(), R"(["dark","bright"])");
  const auto text = run_program({"eval", text_path("run")}, options_);
  EXPECT_THAT(text.out, HasSubstr(fmt::format("entropy {:.3f} nats by class, {:.3f} by group",
                                              layer["dispatch_entropy"].get<double>(),
                                              layer["group_dispatch_entropy"].get<double>())));

  const auto training =
      run_program({"eval", text_path("run"), "--split", "train", "--json"}, options_);
  EXPECT_EQ(training.json()["images"], 80);
  EXPECT_EQ(training.json()["split"], "train");
  for (const char* split : {"validation", "tset"}) {
    expect_usage_error({"eval", text_path("run"), "--split", split},
                       fmt::format("has no split '{}'; choose one of train, test", split),
                       options_);
  }

  write_tensors(path("in.safetensors"), {{"images", torch::randn({5, 3, 32, 32})}});
  must_succeed({"predict", text_path("run"), "--input", text_path("in.safetensors"), "--output",
                text_path("out.safetensors"), "--routing"});
  const auto found = read_tensors(path("out.safetensors"));
  EXPECT_EQ(found.at("logits").sizes(), (std::vector<int64_t>{5, 2}));
  EXPECT_EQ(found.at("pre_logits").sizes(), (std::vector<int64_t>{5, 26}));
  EXPECT_EQ(found.at("routing.0.combine").sizes(), (std::vector<int64_t>{5, 2}));

  must_succeed({"export", text_path("run"), "--format", "safetensors", "--out",
                text_path("model.safetensors")});
  must_succeed(
      {"export", text_path("run"), "--format", "torchscript", "--out", text_path("model.pt")},
      options_);
  const auto read = read_tensors(path("in.safetensors"));
  const at::Tensor logits =
      torch::jit::load(text_path("model.pt")).forward({read.at("images")}).toTensor();
  EXPECT_TRUE(at::allclose(logits, found.at("logits"), 1e-4, 1e-5));
}

TEST_F(Images, OfARelativePathAreFoundFromAnyFolder) {
  write("relative.json", R"({"name": "relative", "base": "mini.json", "rotate": {"crop": 24}})");
  const auto from = [&](const std::string& folder, const std::string& arguments) {
    return run_command(
        {"sh", "-c", fmt::format("cd {} && {} {}", folder, MOESAIC_PROGRAM, arguments)}, options_);
  };
  must_succeed(from(text_path("."),
                    "train run.json phases.train.data=relative.json "
                    "phases.train.evaluate=false --out run"));
  const auto evaluated = must_succeed(from("/", "eval --json " + text_path("run")));
  EXPECT_EQ(evaluated.json()["images"], 24);
  const std::string rest = " phases.train.evaluate=false --out " + text_path("run") + " --resume";
  must_succeed(from(text_path("."), "train run.json phases.train.data=relative.json" + rest));
  must_succeed(from("/", "train " + text_path("run.json") +
                             " phases.train.data=" + text_path("relative.json") + rest));
}

TEST_F(Images, PutThereByHandAreUnproven) {
  write("by-hand.json", R"({"name": "by-hand", "description": "bright or dark", "format": "cifar",
      "classes": ["dark", "bright"], "num_images": {"train": 40, "test": 12},
      "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2], "files": {
        "train_1": {"name": "train.bin", "size": 122920},
        "test_1": {"name": "test.bin", "size": 36876}},
      "archive": {"name": "mini.tar.gz", "folder": "mini", "md5": "00000000000000000000000000000000",
                  "max_size": 1000000}})");
  const auto verified = must_succeed({"data", "verify", text_path("by-hand.json")}, options_);
  EXPECT_THAT(verified.out, HasSubstr("train.bin                    unverified: "));
}

TEST_F(Images, AreTakenByExportsAsByTheRun) {
  const auto run = [&](const Strings& arguments) { return must_succeed(arguments, options_); };
  run({"train", text_path("run.json"), "--out", text_path("run")});
  const std::string data = text_path("mini-rotate.json");
  const auto wanted = run({"eval", text_path("run"), "--json"}).json();
  for (const std::string out : {"folder", "one.safetensors", "model.ts.pt"}) {
    const std::string format = out.ends_with("pt") ? "torchscript" : "safetensors";
    run({"export", text_path("run"), "--format", format, "--out", text_path(out)});
    const auto found = run({"eval", text_path(out), "--data", data, "--json"}).json();
    EXPECT_EQ(found["loss"], wanted["loss"]);
    EXPECT_EQ(found["classes"], wanted["classes"]);
    EXPECT_THAT(run({"inspect", text_path(out)}).out, HasSubstr("2 experts"));
    run({"prune", "--finetuned", text_path(out), "--criterion", "magnitude", "--keep", "1", "--out",
         text_path("pruned-" + out)});
    const auto plan = run({"train", text_path("run.json"), "init=" + text_path("pruned-" + out),
                           "model=null", "--dry-run"});
    EXPECT_THAT(plan.out, AllOf(HasSubstr("memory "), Not(HasSubstr("not counted"))));
    run({"train", text_path("run.json"), "init=" + text_path(out), "model=null", "--out",
         text_path("from-" + out)});
  }
}

/// Returns the sum that a plan of memory gives, in bytes.
double planned_bytes(const std::string& plan) {
  const size_t place = plan.find(": about ");
  if (place == std::string::npos) return 0.0;
  std::istringstream text(plan.substr(place + 8));
  double number = 0.0;
  std::string unit;
  text >> number >> unit;
  return number * (unit.starts_with("GB") ? 1e9 : unit.starts_with("MB") ? 1e6 : 1e3);
}

TEST_F(Images, ArePlannedWithinAFractionOfTheirMemory) {
  SKIP_WITH_SANITIZER("a sanitizer needs memory of its own");
  write("data/mini/train.bin", records(80));
  write("large.json", R"({"name": "large", "checkpoint_every": 0, "model": {"name": "vmoe",
      "image_size": 32, "channels": 3, "patch_size": 4, "hidden_size": 96, "num_classes": 2,
      "encoder": {"num_layers": 6, "num_heads": 4, "mlp_dim": 384, "moe": {"layers": [1, 3, 5],
        "num_experts": 8, "router": {"num_selected_experts": 2}}}},
      "phases": [{"name": "train", "data": ")" +
                          text_path("mini-rotate.json") +
                          R"(", "batch_size": 80, "steps": 3,
        "optimizer": {"name": "adamw", "lr": 1e-4}}]})");
  write("mini.json", R"({"name": "mini", "description": "bright or dark", "format": "cifar",
      "classes": ["dark", "bright"], "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2], "files": {
        "train_1": {"name": "train.bin", "size": 245840},
        "test_1": {"name": "test.bin", "size": 36876}}})");
  for (const Strings& shape : {Strings{},
                               {"model.hidden_size=192", "model.encoder.mlp_dim=768"},
                               {"model.encoder.moe.layers=[]"}}) {
    const Strings arguments = joined({"train", text_path("large.json")}, shape);
    const std::string run = text_path("run" + std::to_string(shape.size()));
    const auto plan = must_succeed(joined(arguments, {"--dry-run"}), options_);
    const auto trained = must_succeed(joined(arguments, {"--out", run}), options_);
    const auto peak = static_cast<double>(trained.peak_bytes);
    EXPECT_NEAR(planned_bytes(plan.out), peak, 0.15 * peak) << plan.out;
  }
}

TEST_F(Images, ArePlannedWithoutFiles) {
  std::filesystem::remove_all(path("data"));
  const auto planned = must_succeed({"train", text_path("run.json"), "--dry-run"}, options_);
  EXPECT_THAT(planned.out, HasSubstr("activations"));
  EXPECT_THAT(planned.out, Not(HasSubstr("not known")));
}

TEST_F(Images, WrongSettingsAreOneLine) {
  const auto train = [&](const std::string& setting) {
    return run_program({"train", text_path("run.json"), setting, "--out", text_path("run")},
                       options_);
  };
  expect_one_line_error(train("model.expert=resnet50"), 2, "resnet18");
  expect_one_line_error(train("model.router.patch_size=5"), 2, "squares of 5 x 5");
  expect_one_line_error(train("model.num_classes=10"), 2, "2 classes");
  expect_one_line_error(train("phases.0.augment.blur.width=4"), 2, "odd");
  expect_one_line_error(train("phases.train.data=cifar10-rotat"), 2, "cifar10-rotate");
}

}  // namespace
}  // namespace moesaic::testing
