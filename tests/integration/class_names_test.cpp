// SPDX-License-Identifier: Apache-2.0
// Data whose classes are not in the network's order, not the network's, or not called by text.
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "base/support.h"
#include "data/data_fixture.h"
#include "data/png_bytes.h"
#include "integration/program.h"
#include "moesaic/base/file.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

/// Standard error also says what the folders of the data are.
void expect_refused(const ProgramResult& result, int code, const std::string& text) {
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_THAT(result.err, HasSubstr(text));
}

class ClassNames : public ProgramTest {
 protected:
  ClassNames() {
    write("recipe.json", R"({"name": "pets", "seed": 1, "model": {"name": "vmoe", "image_size": 16,
        "channels": 3, "patch_size": 8, "hidden_size": 16, "num_classes": 3, "encoder":
        {"num_layers": 2, "num_heads": 2, "mlp_dim": 32, "moe": {"layers": [1], "num_experts": 4,
        "router": {"num_selected_experts": 2}}}}, "phases": [{"name": "train", "data": "./data",
        "preprocess": {"size": 16}, "batch_size": 8, "steps": 40,
        "optimizer": {"name": "adamw", "lr": 0.01}}]})");
    make_images("data", {"cat", "dog", "ship"});
  }

  /// Eight images of one colour a class and split.
  void make_images(const std::string& folder, const Strings& classes) const {
    for (size_t c = 0; c < classes.size(); ++c) {
      std::array<uint8_t, 3> colour = {};
      colour[c] = 250;
      for (const char* split : {"train", "val"}) {
        for (int i = 0; i < 8; ++i) {
          colour[(c + 1) % 3] = static_cast<uint8_t>(10 * i);
          test::write_file(path(folder) / split / classes[c] / fmt::format("{}.png", i),
                           test::plain_png_bytes(16, 16, colour));
        }
      }
    }
  }
  ProgramResult train(const std::string& out, const Strings& more = {}) const {
    return run_program(joined({"train", text_path("recipe.json"), "--out", text_path(out),
                               "phases.0.data=" + text_path("data")},
                              more));
  }
  double accuracy(const std::string& data, const Strings& more = {}) const {
    return must_succeed(joined({"eval", text_path("run"), "--data", data, "--json"}, more))
        .json()["accuracy"]
        .get<double>();
  }
};

TEST_F(ClassNames, AreWhatEvalFindsThemBy) {
  must_succeed(train("run"));
  ASSERT_EQ(accuracy(text_path("data")), 100.0);
  write("turned.json", R"({"name": "turned", "format": "image_folder", "paths": ["./data"],
      "classes": ["ship", "dog", "cat"], "mean": [0.485, 0.456, 0.406],
      "std": [0.229, 0.224, 0.225]})");
  EXPECT_EQ(accuracy(text_path("turned.json")), 100.0);
  make_images("other", {"apple", "bird", "cow"});
  expect_refused(run_program({"eval", text_path("run"), "--data", text_path("other")}), 2,
                 "the class 'apple' is not a class of the network");
  EXPECT_EQ(accuracy(text_path("other"), {"--classes-of", "data"}), 100.0);
  fs::remove_all(path("data/train/cat"));
  fs::remove_all(path("data/val/cat"));
  EXPECT_EQ(accuracy(text_path("data")), 100.0);
}

TEST_F(ClassNames, ThatLookAlikeAreToldApartWherePeopleReadThem) {
  fs::remove_all(path("data"));
  make_images("data", {"cat", "caf\u00e9", "cafe\u0301"});
  must_succeed(train("run"));
  const std::string image = text_path("data/val/cat/0.png");
  const auto shown = run_program({"predict", text_path("run"), image});
  EXPECT_THAT(shown.out,
              AllOf(HasSubstr(" caf\\u{e9} "), HasSubstr(" cafe\\u{301} "), HasSubstr(" cat ")))
      << shown.err;
  const auto rows = run_program({"predict", text_path("run"), image, "--csv"});
  EXPECT_THAT(rows.out, AllOf(HasSubstr(",caf\u00e9,"), HasSubstr(",cafe\u0301,")));
  const auto evaluated = run_program({"eval", text_path("run")});
  EXPECT_THAT(evaluated.out, AllOf(HasSubstr(" caf\\u{e9}\n"), HasSubstr(" cafe\\u{301}\n")));
}

TEST_F(ClassNames, AreThoseOfTheDataOnlyWithANewHead) {
  must_succeed(train("run"));
  make_images("other", {"apple", "bird", "cow"});
  const Strings more = {"init=" + text_path("run"), "phases.0.steps=2",
                        "phases.0.data=" + text_path("other")};
  expect_refused(train("tuned", more), 2, "\"new_head\": true");
  must_succeed(train("tuned", joined(more, {"phases.0.on_entry.new_head=true"})));
}

TEST_F(ClassNames, ThatAreNoTextAreRefusedBeforeAnythingIsTrained) {
  make_images("data", {"caf\xe9"});
  const std::string what = "the name 'caf\\xe9' of class 0 is not UTF-8";
  expect_refused(train("run", {"--dry-run"}), 1, what);
  expect_refused(train("run"), 1, what);
  EXPECT_FALSE(fs::exists(path("run")));
  const ProgramResult verified = run_program({"data", "verify", text_path("data") + "/"});
  EXPECT_NE(verified.exit_code, 0);
  EXPECT_THAT(verified.out + verified.err, HasSubstr(what));
  expect_refused(run_program({"data", "pack", text_path("data") + "/", "--shards", "1", "--out",
                              text_path("packed")}),
                 1, what);
}

TEST_F(ClassNames, ThatChangeBetweenAStopAndItsResumeEndIt) {
  must_succeed(train("run"));
  fs::remove_all(path("run/checkpoints/train"));
  for (const char* split : {"data/train", "data/val"}) {
    fs::rename(path(split) / "ship", path(split) / "aardvark");
  }
  expect_refused(train("run", {"--resume"}), 2,
                 "it has no class 'ship' any more and has a new class 'aardvark'");
}

}  // namespace
}  // namespace moesaic::testing
