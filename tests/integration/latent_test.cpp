// SPDX-License-Identifier: Apache-2.0
// The latent paper's algorithm from a recipe to an export, as a user runs it.
#include <torch/script.h>
#include <torch/torch.h>

#include <set>

#include "integration/program.h"
#include "moesaic/base/file.h"
#include "moesaic/checkpoint/tensors.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

class LatentProgram : public ProgramTest {
 protected:
  static std::string smoke() {
    return std::string(MOESAIC_TEST_SOURCE_DIR) + "/models/latent/recipes/smoke.json";
  }
};

TEST_F(LatentProgram, TrainsInspectsEvaluatesAndExports) {
  const auto trained = run_program({"train", smoke(), "--out", text_path("run")});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("the theorems do not cover it"));
  const auto inspected = run_program({"inspect", text_path("run")});
  ASSERT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_THAT(inspected.out, HasSubstr("moe.experts.w"));
  const auto evaluated = run_program({"eval", text_path("run"), "--json"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  const double mse = evaluated.json().at("mse");
  // Routing by cluster: the ideal router gives each cluster's samples to half of the experts.
  const auto dispatch = evaluated.json().at("routing").at(0).at("group_dispatch");
  EXPECT_GT(dispatch.at(0).at(0).get<double>(), 20 * dispatch.at(1).at(0).get<double>());
  EXPECT_GT(dispatch.at(1).at(1).get<double>(), 20 * dispatch.at(0).at(1).get<double>());
  for (const char* format : {"torchscript", "safetensors"}) {
    const std::string file = text_path(std::string("net.") + format);
    const auto made = run_program({"export", text_path("run"), "--format", format, "--out", file});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const auto again = run_program({"eval", file, "--json", "--data", "latent-small"});
    ASSERT_EQ(again.exit_code, 0) << again.err;
    EXPECT_NEAR(again.json().at("mse").get<double>(), mse, 1e-4 * mse);
  }
  const at::Tensor inputs = torch::randn({5, 1, 1, 24});
  write_tensors(path("in.safetensors"), {{"images", inputs}});
  const auto predicted =
      run_program({"predict", text_path("run"), "--input", text_path("in.safetensors"), "--output",
                   text_path("out.safetensors"), "--routing"});
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  const TensorMap out = read_tensors(path("out.safetensors"));
  EXPECT_EQ(out.at("routing.0.combine").sizes(), at::IntArrayRef({5, 4}));
  torch::jit::Module script = torch::jit::load(text_path("net.torchscript"));
  const at::Tensor scripted = script.forward({inputs}).toTensor();
  EXPECT_EQ(scripted.sizes(), at::IntArrayRef({5, 1}));
  EXPECT_LT((scripted - out.at("logits")).abs().max().item<double>(), 1e-5);
}

TEST_F(LatentProgram, SaysInOneLineWhatDoesNotFit) {
  const auto with = [&](const std::string& mixture) {
    write("mine.json", R"({"name": "mine", "format": "latent", "mixture": )" + mixture + "}");
    return run_program(
        {"train", smoke(), "--out", text_path("run"), "phases.0.data=" + text_path("mine.json")});
  };
  expect_one_line_error(with(R"({"width": 24, "global": [1, 0, 1]})"), 2,
                        "global has a constant term");
  expect_one_line_error(with(R"({"width": 24, "num_clusters": 12})"), 2,
                        "12 clusters have 25 directions");
  const auto diverged =
      run_program({"train", smoke(), "--out", text_path("run"), "phases.explore.lr=1e5"});
  EXPECT_EQ(diverged.exit_code, 1);
  EXPECT_THAT(diverged.err, HasSubstr("a step turns a neuron by more than 45 degrees"));
  EXPECT_THAT(diverged.err, HasSubstr("lower phases.explore.lr (100000 now)"));
}

TEST_F(LatentProgram, ReproducesItsExperimentsAtQuickScale) {
  for (const char* name : {"figure1", "figure2"}) {
    const auto made = run_program(
        {"reproduce", std::string("latent/") + name, "--scale", "quick", "--out", text_path(name)});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const auto rows = nlohmann::json::parse(read_text(path(name) / "results.json")).at("rows");
    std::set<std::string> names;
    for (const auto& row : rows) {
      names.insert(row.at("name"));
      const std::string metric = row.at("metric");
      const double measured = row.at("measured");
      if (metric.starts_with("max_") || metric.starts_with("share_")) {
        EXPECT_TRUE(measured >= 0.0 && measured <= 1.0 + 1e-5) << row;
      }
    }
    if (name == std::string("figure1")) {
      EXPECT_THAT(names, ElementsAre("phase1", "phase2", "phase2_rho5", "vanilla"));
    } else {
      EXPECT_THAT(names, ElementsAre("phase3", "phase3_ideal", "phase3_rho5", "phase4", "vanilla"));
    }
  }
}

TEST_F(LatentProgram, TrainsEachPhaseOfAnExperimentOnce) {
  const auto planned = [&](const std::string& name) {
    const auto made = run_program({"reproduce", "latent/" + name, "--dry-run"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return made.out;
  };
  EXPECT_THAT(planned("figure1"), HasSubstr("phase1 + phase2 + phase2_rho5"));
  EXPECT_THAT(planned("figure2"), HasSubstr("phase3_ideal + phase4"));
  EXPECT_THAT(planned("clusters4"), HasSubstr("phase1 + phase2"));
  EXPECT_THAT(planned("chain"), AllOf(HasSubstr("rho 2, J 4"), HasSubstr("rho 2, vanilla")));
  EXPECT_THAT(planned("theorem"), HasSubstr("rho 1 in phase I"));
  EXPECT_THAT(planned("exponent"), HasSubstr("he4, d 128"));
  EXPECT_THAT(planned("assumptions"), HasSubstr("vanilla, hermite"));
}

}  // namespace
}  // namespace moesaic::testing
