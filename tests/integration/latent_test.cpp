// SPDX-License-Identifier: Apache-2.0
// The latent paper's algorithm from a recipe to an export, as a user runs it.
#include <torch/script.h>
#include <torch/torch.h>

#include <set>

#include "integration/program.h"
#include "moesaic/checkpoint/tensors.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

class LatentProgram : public ProgramTest {
 protected:
  static std::string smoke() { return recipe("latent/recipes/smoke.json"); }
};

TEST_F(LatentProgram, TrainsInspectsEvaluatesAndExports) {
  const auto trained = must_succeed({"train", smoke(), "--out", text_path("run")});
  EXPECT_THAT(trained.err, HasSubstr("the theorems do not cover it"));
  const auto inspected = must_succeed({"inspect", text_path("run")});
  EXPECT_THAT(inspected.out, HasSubstr("moe.experts.w"));
  const auto evaluated = must_succeed({"eval", text_path("run"), "--json"});
  const double mse = evaluated.json().at("mse");
  // Routing by cluster: the ideal router gives each cluster's samples to half of the experts.
  const auto dispatch = evaluated.json().at("routing").at(0).at("group_dispatch");
  EXPECT_GT(dispatch.at(0).at(0).get<double>(), 20 * dispatch.at(1).at(0).get<double>());
  EXPECT_GT(dispatch.at(1).at(1).get<double>(), 20 * dispatch.at(0).at(1).get<double>());
  for (const char* format : {"torchscript", "safetensors"}) {
    const std::string file = text_path(std::string("net.") + format);
    must_succeed({"export", text_path("run"), "--format", format, "--out", file});
    const auto again = must_succeed({"eval", file, "--json", "--data", "latent-small"});
    EXPECT_NEAR(again.json().at("mse").get<double>(), mse, 1e-4 * mse);
  }
  const at::Tensor inputs = torch::randn({5, 1, 1, 24});
  write_tensors(path("in.safetensors"), {{"images", inputs}});
  must_succeed({"predict", text_path("run"), "--input", text_path("in.safetensors"), "--output",
                text_path("out.safetensors"), "--routing"});
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
  for (const std::string name : {"figure1", "figure2"}) {
    std::set<std::string> names;
    for (const auto& row : quick_rows("latent/" + name)) {
      names.insert(row.at("name"));
      const std::string metric = row.at("metric");
      const double measured = row.at("measured");
      if (metric.starts_with("max_") || metric.starts_with("share_")) {
        EXPECT_TRUE(measured >= 0.0 && measured <= 1.0 + 1e-5) << row;
      }
    }
    if (name == "figure1") {
      EXPECT_THAT(names, ElementsAre("phase1", "phase2", "phase2_rho5", "vanilla"));
    } else {
      EXPECT_THAT(names, ElementsAre("phase3", "phase3_ideal", "phase3_rho5", "phase4", "vanilla"));
    }
  }
}

TEST_F(LatentProgram, TrainsEachPhaseOfAnExperimentOnce) {
  const auto planned = [&](const std::string& name) {
    return must_succeed({"reproduce", "latent/" + name, "--dry-run"}).out;
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
