// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/reproduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moesaic/base/file.h"
#include "moesaic/config/document.h"
#include "report/report_fixture.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using report_test::error_of;
using ::testing::HasSubstr;

Reproduction run_tiny(const fs::path& out) {
  Experiment experiment{.name = "tiny", .kind = "prune-sweep", .description = "Two quarters."};
  experiment.config = Document::from_text(report_test::tiny_sweep(), "tiny.json").root();
  ReproduceOptions options;
  options.out = out;
  options.progress = false;
  options.open = report_test::open_tiny;
  return reproduce(experiment, options);
}

TEST(Reproduce, AMissingGnuplotIsFoundBeforeTraining) {
  const report_test::TempDir folder;
  const test::ScopedEnv path("PATH", folder.path().string());
  EXPECT_THAT(error_of([&] { run_tiny(folder / "out"); }), HasSubstr("failure: gnuplot: "));
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(Reproduce, LeavesAFolderOfSomeoneElseAlone) {
  const report_test::TempDir folder;
  fs::create_directories(folder / "out");
  test::put(folder / "out/notes.txt", "mine");
  EXPECT_THAT(error_of([&] { run_tiny(folder / "out"); }), HasSubstr("usage: "));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "out"), fs::directory_iterator()), 1);
}

TEST(Reproduce, ADamagedTimeDoesNotBlockAnExperiment) {
  for (const char* text : {"", "{", "[]", "{\"seconds\": \"many\"}", "{\"seconds\": -1}"}) {
    const report_test::TempDir folder;
    fs::create_directories(folder / "out");
    test::put(folder / "out/elapsed.json", text);
    test::put(folder / "out/config.json", "{\"other\": 1}");
    EXPECT_THAT(error_of([&] { run_tiny(folder / "out"); }), HasSubstr("of something else"))
        << text;
  }
}

}  // namespace
}  // namespace moesaic
