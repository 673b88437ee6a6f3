// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "train/train_fixture.h"

namespace moesaic {
namespace {

using train_test::TempDir;
namespace fs = std::filesystem;

std::string metrics(const TempDir& folder) {
  return read_text(folder / "run/metrics.jsonl");
}

TEST(MetricsWriter, WritesALineForEachEvent) {
  TempDir folder;
  MetricsWriter recorder(folder / "run", 0);
  recorder.write("train", 3, {{"phase", "a"}, {"loss", 0.5}}, "train/a");
  recorder.write("eval", 4, {{"accuracy", 25}}, "test/a");
  EXPECT_EQ(recorder.lines(), 2);
  EXPECT_EQ(metrics(folder),
            "{\"kind\":\"train\",\"step\":3,\"phase\":\"a\",\"loss\":0.5}\n"
            "{\"kind\":\"eval\",\"step\":4,\"accuracy\":25}\n");
}

TEST(MetricsWriter, CutsWhatFollowsTheKeptLines) {
  for (const int64_t keep : {0, 1, 2, 3}) {
    TempDir folder;
    fs::create_directories(folder / "run");
    std::ofstream(folder / "run/metrics.jsonl") << "one\ntwo\nthree\nunfin";
    MetricsWriter recorder(folder / "run", keep);
    EXPECT_EQ(recorder.lines(), keep);
    const std::string all = "one\ntwo\nthree\n";
    const size_t length[] = {0, 4, 8, 14};
    EXPECT_EQ(metrics(folder), all.substr(0, length[keep]));
    recorder.write("x", 1, nlohmann::ordered_json::object(), "x");
    EXPECT_EQ(metrics(folder), all.substr(0, length[keep]) + "{\"kind\":\"x\",\"step\":1}\n");
  }
}

TEST(MetricsWriter, FollowsNoLink) {
  TempDir folder;
  fs::create_directories(folder / "run");
  test::put(folder / "mine", "precious\n");
  fs::create_symlink("../mine", folder / "run/metrics.jsonl");
  EXPECT_THAT(test::failure_of([&] { MetricsWriter recorder(folder / "run", 0); }),
              ::testing::HasSubstr("metrics.jsonl: a link"));
  EXPECT_EQ(test::get(folder / "mine"), "precious\n");
}

TEST(MetricsWriter, WritesToNoFileOfOtherNames) {
  TempDir folder;
  fs::create_directories(folder / "run");
  test::put(folder / "backup", "precious\n");
  fs::create_hard_link(folder / "backup", folder / "run/metrics.jsonl");
  EXPECT_THAT(test::failure_of([&] { MetricsWriter recorder(folder / "run", 0); }),
              ::testing::HasSubstr("metrics.jsonl: has 2 names (hard links)"));
  EXPECT_EQ(test::get(folder / "backup"), "precious\n");
}

TEST(MetricsWriter, GoesOnWhereLinesAreMissing) {
  TempDir folder;
  MetricsWriter recorder(folder / "run", 7);
  EXPECT_EQ(recorder.lines(), 0);
}

TEST(MetricsWriter, RoundsToSevenDigits) {
  EXPECT_EQ(rounded(0.123456789), 0.1234568);
  EXPECT_EQ(rounded(0.0), 0.0);
  EXPECT_EQ(rounded(123456789.0), 123456800.0);
  EXPECT_EQ(rounded(-1.0), -1.0);
}

}  // namespace
}  // namespace moesaic
