// SPDX-License-Identifier: Apache-2.0
// The operators from stock Python: loaded, differentiated, checked by PyTorch's own checks.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "integration/program.h"
#include "integration/readme.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

/// MOESAIC_VENV's Python or python3, whichever has the PyTorch of this build; empty if none.
std::string python_of_this_torch() {
  const char* venv = std::getenv("MOESAIC_VENV");
  for (const std::string& python :
       {(fs::path(venv == nullptr ? "" : venv) / "bin/python").string(), std::string("python3")}) {
    const auto version = run_command({python, "-c", "import torch; print(torch.__version__)"});
    const std::string number = version.out.substr(0, version.out.find_first_of("+\n"));
    if (version.exit_code == 0 && number == TORCH_VERSION) return python;
  }
  return "";
}

class PythonOperators : public ProgramTest {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "a program built without sanitizers cannot load a library that has them";
#endif
    static const std::string found = python_of_this_torch();
    if (found.empty()) GTEST_SKIP() << "needs a Python with PyTorch " << TORCH_VERSION;
    python_ = found;
  }

  ProgramResult run_python(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {python_, "-W", "ignore"});
    return run_command(arguments);
  }

  std::string python_;
};

/// Bytes of an image that no step leaves as they are, read by the script.
constexpr const char* kInputCheck = R"(
import json, struct, sys, torch
sys.path.insert(0, sys.argv[1])
from network_input import network_input
facts = json.load(open(sys.argv[2]))
image = torch.tensor([31 * i % 251 for i in range(40 * 30)], dtype=torch.uint8).view(40, 30, 1)
made = network_input(image, facts)
assert list(made.shape) == facts["input_size"] and made.dtype == torch.float32, made.shape
scaled = made * facts["std"][0] + facts["mean"][0]
assert 0.4 < scaled.mean() < 0.6 and scaled.min() >= -1e-6 and scaled.max() <= 1 + 1e-6
plain = torch.tensor([7 * i % 251 for i in range(28 * 28)], dtype=torch.uint8).view(28, 28, 1)
wanted = (plain.permute(2, 0, 1) / 255 - facts["mean"][0]) / facts["std"][0]
assert torch.allclose(network_input(plain, facts), wanted, atol=1e-6)
)";

TEST_F(PythonOperators, TheFactsOfAnExportMakeTheNetworksInput) {
  const std::string run = smoke_run().string();
  ASSERT_EQ(
      run_program({"export", run, "--format", "safetensors", "--out", text_path("out")}).exit_code,
      0);
  const auto result = run_python(
      {"-c", kInputCheck, source_path("tests/integration"), text_path("out/preprocess.json")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_quoted("docs/exporting.md", "tests/integration/network_input.py", "python",
                "import torch");
}

const std::string kBuiltLibrary = MOESAIC_BUILD_DIR "/lib/libmoesaic.so";

TEST_F(PythonOperators, LoadFromTheBuildAndFromWhereItIsInstalled) {
  const std::string prefix = text_path("installed");
  ASSERT_EQ(run_command({"cmake", "--install", MOESAIC_BUILD_DIR, "--prefix", prefix}).exit_code,
            0);
  for (const std::string& library : {kBuiltLibrary, prefix + "/lib/libmoesaic.so"}) {
    const auto result = run_python({"-c", fmt::format("import torch; torch.ops.load_library('{}'); "
                                                      "print(torch.ops.moesaic.dispatch.default)",
                                                      library)});
    EXPECT_EQ(result.out, "moesaic.dispatch.default\n") << result.err;
  }
}

TEST_F(PythonOperators, PassGradcheckAndOpcheck) {
  const auto result = run_python({source_path("tests/python/operators_test.py"), kBuiltLibrary});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST_F(PythonOperators, CompileOnceForAnyNumberOfTokensAndTakeHalfLogits) {
  const auto result =
      run_python({"-B", source_path("tests/python/compilers_test.py"), kBuiltLibrary});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST_F(PythonOperators, TheExampleOfItsPagePrintsWhatThatShows) {
  fs::create_directory(path("build"));
  fs::create_directory_symlink(MOESAIC_BUILD_DIR, path("build/release"));
  const std::string example = source_path("tests/consumer/operators.py");
  const auto result = run_command(
      {"sh", "-c", fmt::format("cd '{}' && '{}' '{}'", path("").string(), python_, example)});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_quoted("docs/operators.md", "tests/consumer/operators.py", "python", "import torch");
  expect_excerpt("README.md", "tests/consumer/operators.py", "python", "offsets, token, gate",
                 "y = ops.combine");
  expect_shown("docs/operators.md", result.out);
}

class PythonEmbeddings : public PythonOperators {
 protected:
  void expect_to_pass(const std::string& python, const std::string& part) const {
    const auto result = run_command({python, "-B", source_path("tests/python/embeddings_test.py"),
                                     source_path("tools/python"), part});
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  }
};

TEST_F(PythonEmbeddings, AreRefusedInOneLineWhereSomethingIsWrong) {
  expect_to_pass("python3", "WrongUse");
}

TEST_F(PythonEmbeddings, AreWrittenWholeOrNotAtAll) {
  if (run_python({"-c", "import safetensors"}).exit_code != 0) {
    GTEST_SKIP() << "needs Python's safetensors";
  }
  expect_to_pass(python_, "Written");
}

}  // namespace
}  // namespace moesaic::testing
