// SPDX-License-Identifier: Apache-2.0
// Installs the build into a folder of its own and lets a user's project find it there.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "integration/program.h"
#include "integration/readme.h"
#include "integration/served.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

class Consumer : public ProgramTest {};

TEST_F(Consumer, FindsTheInstalledLibraryAndRunsTheExamplesOfItsPages) {
  SKIP_WITH_SANITIZER("a program built without sanitizers cannot load a library that has them");
  const std::string prefix = text_path("installed");
  must_succeed(run_command({"cmake", "--install", MOESAIC_BUILD_DIR, "--prefix", prefix}));
  must_succeed(run_command({"cmake", "-S", source_path("tests/consumer"), "-B", text_path("build"),
                            "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug",
                            "-Dmoesaic_DIR=" + prefix + "/lib/cmake/moesaic"}));
  must_succeed(run_command({"cmake", "--build", text_path("build")}));
  const auto result = must_succeed(run_command({text_path("build") + "/consumer"}));
  EXPECT_THAT(result.out, HasSubstr("rows computed after pruning"));
  must_succeed(run_command({text_path("build") + "/readme"}));
  expect_quoted("README.md", "tests/consumer/readme.cpp", "cpp", "#include");
  const auto operators = must_succeed(run_command({text_path("build") + "/operators"}));
  expect_quoted("docs/exporting.md", "tests/consumer/serve.cpp", "cpp", "#include");
  if (have_fashion_mnist()) {
    const std::string script = text_path("model.ts.pt");
    must_succeed({"export", smoke_run().string(), "--format", "torchscript", "--out", script});
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
  must_succeed(run_command({"cmake", "--install", MOESAIC_BUILD_DIR, "--prefix", prefix}));
  const auto result =
      must_succeed(run_command({prefix + "/bin/moesaic", "list", "recipes", "--json"}));
  EXPECT_THAT(result.out, HasSubstr(prefix));
}

}  // namespace
}  // namespace moesaic::testing
