// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/store.h"

#include "base/support.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"
#include "support/small_vmoe.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

/// Of a checkpoint with these settings beside the model.
InputSpec input_with(const Json& settings) {
  const auto model = testing::small_vmoe();
  Checkpoint checkpoint{.config = {{"model", model->config()}}, .folder = "there"};
  checkpoint.config.update(settings);
  return input_spec_of(checkpoint, *model);
}

/// What an older checkpoint makes of it, and its warning.
std::pair<InputSpec, std::string> guessed(const Json& settings) {
  InputSpec input;
  const std::string said = test::said_by([&] { input = input_with(settings); });
  return {input, said};
}

Json stored_input() {
  return {{"images", true},
          {"input_size", {1, 8, 8}},
          {"rescale_factor", 1.0 / 255.0},
          {"mean", {0.25}},
          {"std", {0.125}},
          {"channel_order", "gray"},
          {"classes", {"a", "b", "c", "d", "e"}}};
}

TEST(CheckpointInput, IsWhatTheCheckpointStores) {
  const auto [input, warning] = guessed({{"data", "gone/away"}, {"input", stored_input()}});
  EXPECT_EQ(input.mean, std::vector<double>{0.25});
  EXPECT_EQ(input.classes.size(), 5U);
  EXPECT_EQ(warning, "");
}

TEST(CheckpointInput, MustFitTheNetwork) {
  const auto failure = [](const char* key, const Json& value) {
    Json settings = {{"input", stored_input()}};
    settings["input"][key] = value;
    return test::failure_of([&] { input_with(settings); });
  };
  EXPECT_THAT(failure("input_size", {1, 8, 9}),
              HasSubstr("input_size is [1, 8, 9], the network takes [1, 8, 8]"));
  EXPECT_THAT(failure("classes", {"a", "b", "c", "d", "e", "f"}),
              HasSubstr("6 names, the network has 5 outputs"));
}

TEST(CheckpointInput, OfAnOlderCheckpointIsGuessedWithAWarning) {
  const auto [input, warning] =
      guessed({{"data", "fashion-mnist-footwear"}, {"classes", {"Sandal", "Sneaker", "Boot"}}});
  const DatasetSpec base = load_dataset_spec("fashion-mnist");
  EXPECT_EQ(input.dataset, "fashion-mnist-footwear");
  EXPECT_EQ(input.classes, (std::vector<std::string>{"Sandal", "Sneaker", "Boot"}));
  EXPECT_EQ(input.mean, base.mean);
  EXPECT_EQ(input.std, base.std);
  EXPECT_EQ(input.channel_order, "gray");
  EXPECT_THAT(warning, HasSubstr("older version"));
  EXPECT_FALSE(guessed({{"data", "clusters-setting1"}}).first.has_images);

  const auto [other, no_data] = guessed({{"data", "a-set-of-my-own"}});
  EXPECT_EQ(other.dataset, "a-set-of-my-own");
  EXPECT_TRUE(other.mean.empty());
  EXPECT_THAT(no_data, HasSubstr("unknown"));
  EXPECT_TRUE(guessed({{"data", nullptr}, {"classes", nullptr}}).first.dataset.empty());
  EXPECT_TRUE(guessed({{"data", "."}}).first.mean.empty());  // a name, though there is such a path

  const auto [imported, nothing] = guessed({{"preprocess", {{"values", "symmetric"}}}});
  EXPECT_EQ(imported.mean, std::vector<double>{0.5});
  EXPECT_EQ(nothing, "");
}

TEST(CheckpointInput, ReadsADescriptionOfOnesOwn) {
  const test::TempDir folder;
  test::put(folder / "mine.json",
            R"({"name": "mine", "base": "fashion-mnist", "num_first_images": {"train": 10}})");
  const auto mine = guessed({{"data", (folder / "mine.json").string()}}).first;
  EXPECT_EQ(mine.mean, load_dataset_spec("fashion-mnist").mean);
  EXPECT_EQ(mine.dataset, "mine.json");
  EXPECT_TRUE(guessed({{"data", (folder / "gone.json").string()}}).first.mean.empty());
}

}  // namespace
}  // namespace moesaic
