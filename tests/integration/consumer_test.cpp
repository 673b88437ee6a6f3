// SPDX-License-Identifier: Apache-2.0
// Installs the build into a folder of its own and lets a user's project find it there.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "integration/program.h"
#include "integration/readme.h"
#include "integration/served.h"

namespace moesaic::testing {
namespace {

class Consumer : public ProgramTest {};

TEST_F(Consumer, FindsTheInstalledLibraryAndRunsTheExamplesOfItsPages) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "a program built without sanitizers cannot load a library that has them";
#endif
  const std::string prefix = text_path("installed");
  const auto installed = run_command({"cmake", "--install", MOESAIC_BUILD_DIR, "--prefix", prefix});
  ASSERT_EQ(installed.exit_code, 0) << installed.err;
  const auto configured = run_command(
      {"cmake", "-S", source_path("tests/consumer"), "-B", text_path("build"), "-G", "Ninja",
       "-DCMAKE_BUILD_TYPE=Debug", "-Dmoesaic_DIR=" + prefix + "/lib/cmake/moesaic"});
  ASSERT_EQ(configured.exit_code, 0) << configured.out << configured.err;
  const auto built = run_command({"cmake", "--build", text_path("build")});
  ASSERT_EQ(built.exit_code, 0) << built.out << built.err;
  const auto result = run_command({text_path("build") + "/consumer"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("rows computed after pruning"), std::string::npos) << result.out;
  const auto readme = run_command({text_path("build") + "/readme"});
  EXPECT_EQ(readme.exit_code, 0) << readme.err;
  expect_quoted("README.md", "tests/consumer/readme.cpp", "cpp", "#include");
  const auto operators = run_command({text_path("build") + "/operators"});
  EXPECT_EQ(operators.exit_code, 0) << operators.err;
  expect_quoted("docs/exporting.md", "tests/consumer/serve.cpp", "cpp", "#include");
  if (have_fashion_mnist()) {
    const std::string script = text_path("model.ts.pt");
    ASSERT_EQ(
        run_program({"export", smoke_run().string(), "--format", "torchscript", "--out", script})
            .exit_code,
        0);
    const auto served = run_command({text_path("build") + "/serve", script});
    EXPECT_EQ(served.out, "[8, 3]\n") << served.err;
  }
  expect_quoted("docs/operators.md", "tests/consumer/operators.cpp", "cpp", "#include");
  expect_shown("docs/operators.md", operators.out);
  expect_quoted("docs/deploying.md", "examples/deploying/server.cpp", "cpp", "#include");
  if (!have_fashion_mnist()) return;
  const std::string file = text_path("model.pt2");
  const auto exported = run_program(
      {"export", smoke_run().string(), "--format", "pt2", "--with-preprocessing", "--out", file});
  if (exported.err.find("this format needs Python") != exported.err.npos) {
    GTEST_SKIP() << "no .pt2 to serve: " << exported.err;
  }
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  const ServedImages images = served_images(smoke_run());
  write("images", images.bytes);
  const auto served =
      run_command({"sh", "-c",
                   fmt::format("'{}' '{}' 1 28 28 < '{}'", text_path("build/server"), file,
                               text_path("images"))});
  EXPECT_EQ(served.out, fmt::format("{}\n", fmt::join(images.best, "\n"))) << served.err;
}

TEST_F(Consumer, TheInstalledProgramFindsItsRecipes) {
  const std::string prefix = text_path("installed");
  ASSERT_EQ(run_command({"cmake", "--install", MOESAIC_BUILD_DIR, "--prefix", prefix}).exit_code,
            0);
  const auto result = run_command({prefix + "/bin/moesaic", "list", "recipes", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find(prefix), std::string::npos) << result.out;
}

}  // namespace
}  // namespace moesaic::testing
