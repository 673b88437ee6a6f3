// SPDX-License-Identifier: Apache-2.0
// A patch-level mixture from a recipe to an export, and where its experts look.
#include <fmt/format.h>
#include <torch/script.h>
#include <torch/torch.h>

#include "integration/program.h"
#include "moesaic/base/file.h"
#include "moesaic/checkpoint/tensors.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

class PMoEProgram : public ProgramTest {
 protected:
  PMoEProgram() : options_{.environment = {"MOESAIC_DATA=" + text_path("data")}} {
    std::filesystem::create_directories(path("data/mini"));
    write("data/mini/train.bin", records(30));
    write("data/mini/test.bin", records(12));
    write("mini.json", R"({"name": "mini", "description": "three shades", "format": "cifar",
        "classes": ["dark", "grey", "bright"], "num_images": {"train": 30, "test": 12},
        "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2], "files": {
          "train_1": {"name": "train.bin", "size": 92190},
          "test_1": {"name": "test.bin", "size": 36876}}})");
    write_grid();
    write("run.json", R"({"name": "patches", "seed": 3, "checkpoint_every": 0,
        "model": {"preset": "pmoe/joint", "channels": 3, "image_size": 64, "patch_size": 32,
                  "num_experts": 4, "router": {"num_selected_patches": 2}},
        "phases": [{"name": "train", "kind": "patch_sgd", "data": ")" +
                          text_path("mini-grid.json") + R"(", "lr": 0.002, "epochs": 3}]})");
  }

  void write_grid() const {
    write("mini-grid.json", R"({"name": "mini-grid", "base": ")" + text_path("mini.json") +
                                R"(", "mosaic": {"deciding": ["dark", "bright"], "grid": 2,
                                    "num_train": 40, "num_test": 20}})");
  }

  static std::string records(int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      bytes += static_cast<char>(i % 3);
      for (int pixel = 0; pixel < 3072; ++pixel) {
        bytes += static_cast<char>(20 + 70 * (i % 3) + 30 * (pixel / 32 % 4 / 2));
      }
    }
    return bytes;
  }
  ProgramResult run(const Strings& arguments) const { return run_program(arguments, options_); }
  void expect_whole_way(const std::string& recipe, int64_t side, at::IntArrayRef routed) const;

  ProgramOptions options_;
};

/// Trains, prunes to half, predicts and exports; `routed` is the shape of its routing of 3 images.
void PMoEProgram::expect_whole_way(const std::string& recipe, int64_t side,
                                   at::IntArrayRef routed) const {
  must_succeed(run({"train", text_path(recipe), "--out", text_path("run")}));
  const auto inspected = run({"inspect", text_path("run")});
  EXPECT_THAT(inspected.out, HasSubstr("moe.router.weight"));
  must_succeed(run({"prune", "--finetuned", text_path("run"), "--criterion", "router-magnitude",
                    "--keep", "2", "--out", text_path("pruned")}));
  torch::manual_seed(1);
  const at::Tensor images = torch::rand({3, 3, side, side});
  write_tensors(path("in.safetensors"), {{"images", images}});
  must_succeed(run({"predict", text_path("pruned"), "--input", text_path("in.safetensors"),
                    "--output", text_path("out.safetensors"), "--routing"}));
  const TensorMap out = read_tensors(path("out.safetensors"));
  EXPECT_EQ(out.at("routing.0.logits").sizes(), routed);
  EXPECT_EQ(out.at("routing.0.combine").sizes(), routed);
  for (const std::string format : {"torchscript", "safetensors"}) {
    must_succeed(run(
        {"export", text_path("pruned"), "--format", format, "--out", text_path("net." + format)}));
  }
  torch::jit::Module script = torch::jit::load(text_path("net.torchscript"));
  const at::Tensor again = script.forward({images}).toTensor();
  EXPECT_LT((again - out.at("logits")).abs().max().item<double>(), 1e-5);
}

TEST_F(PMoEProgram, TrainsPrunesPredictsAndExports) {
  expect_whole_way("run.json", 64, {12, 4});
}

TEST_F(PMoEProgram, WideNetworksGoTheSameWay) {
  write("wide.json", R"({"name": "wide", "seed": 3, "checkpoint_every": 0,
      "model": {"preset": "pmoe/wrn-pmoe", "widen_factor": 0.25, "num_classes": 3},
      "phases": [{"name": "train", "data": ")" +
                         text_path("mini.json") + R"(", "batch_size": 8, "num_samples": 24,
                  "epochs": 2, "optimizer": {"name": "sgd", "lr": 0.1}}]})");
  expect_whole_way("wide.json", 32, {192, 4});
  must_succeed(run({"eval", text_path("run"), "--routing-images", text_path("where.png")}));
  must_succeed(run({"prune", "--finetuned", text_path("run"), "--criterion", "reap", "--keep", "2",
                    "--out", text_path("by-use")}));
  const auto replaced = run({"prune", "--finetuned", text_path("run"), "--criterion", "reap",
                             "--keep", "2", "--replace", "mean", "--out", text_path("replaced")});
  expect_one_line_error(replaced, 2, "'mean' cannot replace their outputs");
}

TEST_F(PMoEProgram, DrawsThePatchesOfEachExpert) {
  must_succeed(run({"train", text_path("run.json"), "--out", text_path("run")}));
  const auto drawn = must_succeed(run({"eval", text_path("run"), "--routing-images",
                                       text_path("where.png"), "--images", "4", "--json"}));
  EXPECT_EQ(drawn.json().at("images"), 20);
  EXPECT_THAT(read_text(path("where.png")), ::testing::StartsWith("\x89PNG"));
  EXPECT_THAT(read_text(path("where.gp")), HasSubstr("'expert 3'"));
  expect_one_line_error(run({"eval", text_path("run"), "--routing-images", text_path("where.png")}),
                        2, "where.png");
  expect_one_line_error(run({"eval", text_path("run"), "--images", "4"}), 2, "--routing-images");
}

TEST_F(PMoEProgram, SmokeRecipeRoutesThePatternsThatTellTheClass) {
  must_succeed(run({"train", recipe("pmoe/recipes/smoke.json"), "--out", text_path("smoke")}));
  const auto evaluated = must_succeed(run({"eval", text_path("smoke"), "--json"}));
  EXPECT_GT(evaluated.json().at("accuracy").get<double>(), 95.0);
  EXPECT_TRUE(evaluated.json().at("routing")[0].contains("load"));
}

TEST_F(PMoEProgram, SaysInOneLineWhatDoesNotFit) {
  const auto train = [&](const std::string& change) {
    return run({"train", text_path("run.json"), "--out", text_path("run"), change});
  };
  expect_one_line_error(train("model.router.num_selected_patches=5"), 2,
                        "cannot select 5 of 4 patches");
  expect_one_line_error(train("model.patch_size=24"), 2,
                        "patches of 24 x 24 do not divide an image of 64 x 64");
  write("mini-grid.json", R"({"name": "mini-grid", "base": ")" + text_path("mini.json") +
                              R"(", "mosaic": {"deciding": ["dark", "brigt"]}})");
  expect_one_line_error(train("seed=3"), 2, "did you mean 'bright'");
  write("mini-grid.json", R"({"name": "mini-grid", "base": ")" + text_path("few.json") +
                              R"(", "mosaic": {"deciding": ["dark", "bright"], "grid": 2}})");
  write("few.json", R"({"name": "few", "base": ")" + text_path("mini.json") +
                        R"(", "num_first_images": {"train": 2, "test": 2}})");
  expect_one_line_error(train("seed=3"), 1,
                        "the test split of 'few' has no image of class 'bright'");
  write_grid();
  expect_one_line_error(train("phases.0.num_samples=1"), 2, "cannot cover all 2 classes");
}

TEST_F(PMoEProgram, ReproducesTheLemmaAtQuickScale) {
  const auto rows = quick_rows("pmoe/lemma", options_);
  const auto routed = [&](const std::string& name) {
    for (const auto& row : rows) {
      if (row.at("name") == name && row.at("metric") == "routed_class_1") {
        return row.at("measured").get<double>();
      }
    }
    return -1.0;
  };
  EXPECT_EQ(routed("l4"), 100.0);
  EXPECT_LT(routed("l3"), 100.0);
}

}  // namespace
}  // namespace moesaic::testing
