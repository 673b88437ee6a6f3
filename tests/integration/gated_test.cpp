// SPDX-License-Identifier: Apache-2.0
// A gated mixture and a GRU from a recipe or a description to an export.
#include <torch/script.h>
#include <torch/torch.h>

#include "integration/program.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

class GatedProgram : public ProgramTest {
 protected:
  static std::string smoke() { return recipe("gated/recipes/smoke.json"); }
  ProgramResult train(const std::string& setting) const {
    return run_program({"train", smoke(), "--out", text_path("run"), setting});
  }
};

TEST_F(GatedProgram, TrainsInspectsEvaluatesAndExports) {
  must_succeed({"train", smoke(), "--out", text_path("run")});
  const auto inspected = must_succeed({"inspect", text_path("run")});
  EXPECT_THAT(inspected.out, AllOf(HasSubstr("mixture.gates"), HasSubstr("mixture.regressors")));
  const auto evaluated = must_succeed({"eval", text_path("run"), "--json"});
  const double mse = evaluated.json().at("mse");
  for (const char* format : {"torchscript", "safetensors"}) {
    const std::string file = text_path(std::string("net.") + format);
    must_succeed({"export", text_path("run"), "--format", format, "--out", file});
    const auto again = must_succeed({"eval", file, "--json", "--data", "gated-small"});
    EXPECT_NEAR(again.json().at("mse").get<double>(), mse, 1e-6);
  }
  torch::jit::Module script = torch::jit::load(text_path("net.torchscript"));
  EXPECT_EQ(script.forward({torch::zeros({3, 1, 1, 5})}).toTensor().sizes(),
            at::IntArrayRef({3, 1}));
}

TEST_F(GatedProgram, SaysInOneLineWhatDoesNotFit) {
  write("mine.json",
        R"({"name": "mine", "format": "gated", "mixture": {"width": 4, "num_experts": 3}})");
  expect_one_line_error(train("phases.0.data=" + text_path("mine.json")), 2,
                        "choose at most 2 experts");
  const auto step = train("model.link=step");  // After warnings that the data have another link.
  EXPECT_EQ(step.exit_code, 2);
  EXPECT_THAT(step.err,
              HasSubstr("\nerror: argument 'model.link=step': link 'step' is not valid for L4"));
  expect_one_line_error(train("model.link=sigmoit"), 2, "'sigmoid'");
}

TEST_F(GatedProgram, ReproducesItsExperimentsAtQuickScale) {
  for (const std::string name : {"recovery", "random-directions", "small"}) {
    double em = 1.0;
    for (const auto& row : quick_rows("gated/" + name)) {
      const double measured = row.at("measured");
      if (row.at("metric").get<std::string>().starts_with("error_")) {
        EXPECT_TRUE(measured >= 0.0 && measured <= 2.0) << row;  // 1 minus a cosine.
      }
      if (row.at("name") == "em" && row.at("metric") == "error_A") em = measured;
    }
    if (name == "recovery") {
      EXPECT_LT(em, 0.01);
    }
  }
}

}  // namespace
}  // namespace moesaic::testing
