// SPDX-License-Identifier: Apache-2.0
// Networks of folders as users have them: photos with EXIF, grey images, sides of two lengths.
#include <fmt/format.h>

#include "data/jpeg_bytes.h"
#include "data/png_bytes.h"
#include "integration/program.h"
#include "moesaic/base/file.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

class Folders : public ProgramTest {
 protected:
  Folders() : options_{.environment = {"MOESAIC_DATA=" + text_path("data")}} {}

  void recipe(const std::string& model, const std::string& preprocess) const {
    write("run.json", R"({"name": "folders", "seed": 3, "checkpoint_every": 0,
        "model": {"name": "vmoe", "patch_size": 8, "hidden_size": 16, "num_classes": 2, )" +
                          model + R"(, "encoder": {"num_layers": 2, "num_heads": 2, "mlp_dim": 16,
            "moe": {"layers": [1], "num_experts": 4, "router": {"num_selected_experts": 2}}}},
        "phases": [{"name": "train", "data": ")" +
                          text_path("images/") + R"(", "batch_size": 8, "steps": 6,
          "preprocess": )" +
                          preprocess + R"(, "optimizer": {"name": "adam", "lr": 0.01}}]})");
  }
  /// Twelve images of each class and split.
  template <class Make>
  void images(const std::string& ending, const Make& make,
              const std::string& folder = "images") const {
    for (const char* split : {"train", "test"}) {
      for (int i = 0; i < 24; ++i) {
        const std::string file =
            fmt::format("{}/{}/{}/{:02}.{}", folder, split, i % 2 == 0 ? "a" : "b", i, ending);
        test::write_file(path(file), make(i));
      }
    }
  }
  ProgramResult train(const std::string& out, const Strings& more = {}) const {
    return run_program(joined({"train", text_path("run.json"), "--out", text_path(out)}, more),
                       options_);
  }
  nlohmann::json json_of(Strings command) const {
    command.emplace_back("--json");
    return must_succeed(command, options_).json();
  }
  /// Per cent of the test images that predict() names right.
  double predicted_accuracy(const std::string& run) const {
    int right = 0, all = 0;
    const auto report = json_of({"predict", text_path(run), text_path("images/test")});
    for (const auto& image : report["images"]) {
      const fs::path file = image["file"].get<std::string>();
      right += image["top"][0]["class"] == file.parent_path().filename().string() ? 1 : 0;
      ++all;
    }
    EXPECT_EQ(all, 24);
    return 100.0 * right / all;
  }
  void expect_agreement(const std::string& run) const {
    EXPECT_NEAR(json_of({"eval", text_path(run), "--split", "test"})["accuracy"].get<double>(),
                predicted_accuracy(run), 1e-6)
        << run;
  }

  ProgramOptions options_;
};

// Photos of 'b' look like those of 'a' once they are turned: a subcommand that does not turn them
// as training did takes one class for the other.
TEST_F(Folders, OfPhotosAreRotatedByExifInEveryVerbOrInNone) {
  const auto kind = [](int i) {
    return i % 2 == 0 ? test::JpegKind::rows : test::JpegKind::columns;
  };
  images("jpg", [&](int i) { return test::turned_jpeg_bytes(16 + i, 40, kind(i)); });
  images(
      "jpg", [&](int i) { return test::jpeg_bytes(16 + i, 40, kind(i), {}); }, "as-stored");
  const auto accuracy = [&](const char* run, const std::string& data) {
    return json_of(
               {"eval", text_path(run), "--data", text_path(data), "--split", "test"})["accuracy"]
        .get<double>();
  };
  for (const char* orientation : {"upright", "stored", "data"}) {
    const std::string habit = orientation == std::string("stored") ? "stored" : "upright";
    recipe(R"("image_size": 16, "channels": 3)",
           fmt::format(R"({{"size": 16, "orientation": "{}"}})", orientation));
    must_succeed(train(orientation));
    expect_agreement(orientation);
    EXPECT_EQ(accuracy(orientation, "images/"), 100.0) << orientation;
    const double unturned = accuracy(orientation, "as-stored/");
    EXPECT_TRUE(habit == "stored" ? unturned == 100.0 : unturned <= 50.0)
        << orientation << ": " << unturned;
    const std::string out = text_path(fmt::format("export-{}", orientation));
    must_succeed({"export", text_path(orientation), "--format", "safetensors", "--out", out});
    const Bytes text = test::read_file(fs::path(out) / "preprocess.json");
    EXPECT_EQ(nlohmann::json::parse(text).at("orientation"), habit);
  }
  // Once as stored, once as the file says.
  const Bytes plain = test::jpeg_bytes(20, 40, test::JpegKind::noise, {});
  test::write_file(path("plain.jpg"), plain);
  test::write_file(path("turned.jpg"), test::turned_jpeg_bytes(20, 40, test::JpegKind::noise));
  const auto top = [&](const std::string& run, const std::string& file) {
    return json_of({"predict", text_path(run), text_path(file)})["images"][0]["top"];
  };
  EXPECT_EQ(top("stored", "turned.jpg"), top("stored", "plain.jpg"));
  EXPECT_NE(top("upright", "turned.jpg"), top("upright", "plain.jpg"));
}

TEST_F(Folders, AreResumedWithTheOrientationThatTheyBeganWith) {
  images("jpg", [](int i) { return test::turned_jpeg_bytes(16 + i, 40, test::JpegKind::noise); });
  const std::string model = R"("image_size": 16, "channels": 3)";
  recipe(model, R"({"size": 16, "orientation": "stored"})");
  must_succeed(train("run"));
  const fs::path kept = path("run/config.json");
  const auto config = [&] { return nlohmann::ordered_json::parse(test::read_file(kept)); };
  const auto resume = [&] {
    must_succeed(train("run", {"--resume"}));
    EXPECT_EQ(config()["phases"][0]["preprocess"]["orientation"], "stored");
  };
  recipe(model, R"({"size": 16})");
  resume();
  auto older = config();  // As a version without the setting wrote it.
  older["phases"][0]["preprocess"].erase("orientation");
  older["phases"][0]["preprocess"].erase("channels");
  write("run/config.json", older.dump());
  resume();
}

TEST_F(Folders, OfGreyImagesFeedANetworkOfOneChannel) {
  images("png", [](int i) {
    const auto shade = static_cast<uint8_t>(i % 2 == 0 ? 40 + i : 150 + i);
    return test::plain_png_bytes(16, 16, {shade, shade, shade});
  });
  recipe(R"("image_size": 16, "channels": 1)", R"({"size": 16})");
  const ProgramResult trained = must_succeed(train("grey"));
  EXPECT_THAT(trained.err, HasSubstr("become grey, since the network has one channel"));
  expect_agreement("grey");
  must_succeed({"eval", text_path("grey"), "--data", text_path("images/")}, options_);
}

TEST_F(Folders, OfColoursThatADefaultMakesGreyAreWarnedOf) {
  const auto planned = [&] {
    return run_program({"train", text_path("run.json"), "--dry-run"}, options_).err;
  };
  images("png", [](int i) {
    const auto shade = static_cast<uint8_t>(40 + i);
    return test::plain_png_bytes(16, 16, {shade, shade, shade});
  });
  recipe(R"("image_size": 16)", R"({"size": 16})");
  EXPECT_THAT(planned(), Not(HasSubstr("warning: ")));
  images("png", [](int) { return test::plain_png_bytes(16, 16, {9, 99, 199}); });
  EXPECT_THAT(planned(), HasSubstr("warning: phase 'train': the images of '"));
  EXPECT_THAT(planned(), HasSubstr("by default; model.channels=3 keeps their colours"));
  recipe(R"("image_size": 16, "channels": 1)", R"({"size": 16})");  // This is what was asked for.
  EXPECT_THAT(planned(), Not(HasSubstr("warning: ")));
}

TEST_F(Folders, FeedANetworkOfTwoSides) {
  images("png", [](int i) {
    return test::plain_png_bytes(20, static_cast<uint32_t>(30 + i), {9, 99, 199});
  });
  recipe(R"("image_size": [16, 24], "channels": 3)", R"({"size": 16})");
  const ProgramResult refused = train("refused");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("preprocess.size=[16,24] resizes them"));
  recipe(R"("image_size": [16, 24], "channels": 3)", R"({"size": [16, 24], "central_crop": 0.9})");
  must_succeed(train("wide"));
  expect_agreement("wide");
}

TEST_F(Folders, MeanOfBytesIsRefusedWithTheUnit) {
  images("png", [](int) { return test::plain_png_bytes(16, 16, {9, 99, 199}); });
  recipe(R"("image_size": 16, "channels": 3)",
         R"({"size": 16, "mean": [127.5, 127.5, 127.5], "std": [127.5, 127.5, 127.5]})");
  expect_one_line_error(train("refused"), 2, "mean is of pixels scaled to [0, 1]");
}

TEST_F(Folders, NoMessageGetsIntoAFileWhereStandardErrorIsClosed) {
  must_succeed(run_command({"sh", "-c", R"("$0" train "$1" --out "$2" 2>&-)", MOESAIC_PROGRAM,
                            testing::recipe("clusters/recipes/smoke.json"), text_path("r")}));
  EXPECT_THAT(read_text(path("r/.lock")), ::testing::MatchesRegex("[0-9]+\n"));
  for (const auto& entry : fs::recursive_directory_iterator(path("r"))) {
    if (!entry.is_regular_file()) continue;
    EXPECT_THAT(read_text(entry.path()), Not(HasSubstr("train, step"))) << entry.path();
  }
}

}  // namespace
}  // namespace moesaic::testing
