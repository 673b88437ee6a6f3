// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/decoded_image.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using ::testing::ElementsAre;
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

/// Returns the last image of the event file in a folder, a file of PNG.
std::string last_image(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with("events.")) continue;
    const std::string events = read_text(entry.path());
    const size_t begin = events.rfind("\x89PNG");
    if (begin != std::string::npos) return events.substr(begin, events.rfind("IEND") + 8 - begin);
  }
  return "";
}

TEST(MetricsWriter, DrawsTheExpertsOfAnEvaluation) {
  TempDir folder;
  MetricsWriter recorder(folder / "run", 0);
  const auto write = [&](const char* kind, const char* routing) {
    recorder.write(kind, 4, {{"routing", Json::parse(routing)}}, "a");
    recorder.sync();
    return last_image(folder / "run");
  };
  EXPECT_EQ(write("train", R"([{"layer": 1, "kept": [0], "load": [1.0]}])"), "");
  const auto greys = [&](const char* routing) {
    const test::RgbImage image = test::decode_image(write("eval", routing));
    std::vector<int> middles;  // Of squares with sides of 8 pixels.
    for (int64_t y = 4; y < image.height; y += 8) {
      for (int64_t x = 4; x < image.width; x += 8) {
        middles.push_back(image.pixels.at(static_cast<size_t>(3 * (y * image.width + x))));
      }
    }
    return middles;
  };
  // 127.5 is a uniform load; layer 1 has no expert 2, and layer 3 has lost its expert 1.
  EXPECT_THAT(greys(R"([{"layer": 1, "kept": [0, 1], "load": [0.75, 0.25]},
                        {"layer": 3, "kept": [0, 2], "load": [0.5, 0.5]}])"),
              ElementsAre(191, 63, 0, 127, 0, 127));
  EXPECT_THAT(greys(R"([{"layer": 1, "kept": [0, 1], "load": [0.0, 1.0]}])"), ElementsAre(0, 255));
  // Images of dropped tokens follow those of loads.
  EXPECT_THAT(greys(R"([{"layer": 1, "kept": [0], "load": [1.0]},
                        {"layer": 3, "kept": [0, 1], "load": [0.5, 0.5], "dropped": [0, 0]}])"),
              ElementsAre(0, 0));
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
