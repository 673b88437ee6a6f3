// SPDX-License-Identifier: Apache-2.0
// A gated mixture and a GRU from a recipe or a description to an export.
#include <torch/script.h>
#include <torch/torch.h>

#include "integration/program.h"
#include "moesaic/base/file.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

class GatedProgram : public ProgramTest {
 protected:
  static std::string recipe(const std::string& name) {
    return std::string(MOESAIC_TEST_SOURCE_DIR) + "/models/gated/recipes/" + name;
  }
};

TEST_F(GatedProgram, TrainsInspectsEvaluatesAndExports) {
  const auto trained = run_program({"train", recipe("smoke.json"), "--out", text_path("run")});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto inspected = run_program({"inspect", text_path("run")});
  ASSERT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_THAT(inspected.out, HasSubstr("mixture.gates"));
  EXPECT_THAT(inspected.out, HasSubstr("mixture.regressors"));
  const auto evaluated = run_program({"eval", text_path("run"), "--json"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  const double mse = evaluated.json().at("mse");
  for (const char* format : {"torchscript", "safetensors"}) {
    const std::string file = text_path(std::string("net.") + format);
    const auto made = run_program({"export", text_path("run"), "--format", format, "--out", file});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const auto again = run_program({"eval", file, "--json", "--data", "gated-small"});
    ASSERT_EQ(again.exit_code, 0) << again.err;
    EXPECT_NEAR(again.json().at("mse").get<double>(), mse, 1e-6);
  }
  torch::jit::Module script = torch::jit::load(text_path("net.torchscript"));
  EXPECT_EQ(script.forward({torch::zeros({3, 1, 1, 5})}).toTensor().sizes(),
            at::IntArrayRef({3, 1}));
}

TEST_F(GatedProgram, SaysInOneLineWhatDoesNotFit) {
  write("mine.json",
        R"({"name": "mine", "format": "gated", "mixture": {"width": 4, "num_experts": 3}})");
  expect_one_line_error(run_program({"train", recipe("smoke.json"), "--out", text_path("run"),
                                     "phases.0.data=" + text_path("mine.json")}),
                        2, "choose at most 2 experts");
  const auto step =  // After warnings that the data have another link.
      run_program({"train", recipe("smoke.json"), "--out", text_path("run"), "model.link=step"});
  EXPECT_EQ(step.exit_code, 2);
  EXPECT_NE(step.err.find("\nerror: argument 'model.link=step': link 'step' is not valid for L4"),
            std::string::npos)
      << step.err;
  expect_one_line_error(
      run_program({"train", recipe("smoke.json"), "--out", text_path("run"), "model.link=sigmoit"}),
      2, "'sigmoid'");
}

TEST_F(GatedProgram, ReproducesItsExperimentsAtQuickScale) {
  for (const char* name : {"recovery", "random-directions", "small"}) {
    const auto made = run_program(
        {"reproduce", std::string("gated/") + name, "--scale", "quick", "--out", text_path(name)});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const auto rows = nlohmann::json::parse(read_text(path(name) / "results.json")).at("rows");
    double em = 1.0;
    for (const auto& row : rows) {
      const double measured = row.at("measured");
      if (row.at("metric").get<std::string>().starts_with("error_")) {
        EXPECT_TRUE(measured >= 0.0 && measured <= 2.0) << row;  // 1 minus a cosine.
      }
      if (row.at("name") == "em" && row.at("metric") == "error_A") em = measured;
    }
    if (name == std::string("recovery")) {
      EXPECT_LT(em, 0.01);
    }
  }
}

}  // namespace
}  // namespace moesaic::testing
