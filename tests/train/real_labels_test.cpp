// SPDX-License-Identifier: Apache-2.0
// Labels of ImageNet-ReaL, and classes that are called by numbers as in ImageNet-V2.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "data/data_fixture.h"
#include "data/png_bytes.h"
#include "moesaic/data/source.h"
#include "moesaic/data/views.h"
#include "moesaic/train/evaluate.h"
#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

class RealLabels : public ::testing::Test {
 protected:
  fs::path labels(const std::string& json) const {
    test::put(folder / "real.json", json);
    return folder / "real.json";
  }
  std::string refusal(const std::string& json) const {
    const fs::path file = labels(json);
    return test::usage_of([&] { read_real_labels(file, *quarters("three", "test", 3, 4)); });
  }

  TempDir folder;
};

TEST_F(RealLabels, CountAnImageRightWhereItsPredictionIsAmongThem) {
  const LabelLists lists =
      read_real_labels(labels("[[2, 0], [], [1], [2]]"), *quarters("three", "test", 3, 4));
  EXPECT_EQ(lists, (LabelLists{{2, 0}, {}, {1}, {2}}));
  const at::Tensor predicted = torch::tensor({0, 1, 0, 2}, torch::kLong);
  const Metrics same = real_label_metrics(lists, {"a", "b", "c"}, predicted, {"a", "b", "c"});
  EXPECT_DOUBLE_EQ(same.at("real.accuracy"), 200.0 / 3.0);
  EXPECT_EQ(same.at("real.images"), 3.0);
  // The outputs are in another order: 0 is b, 2 is a.
  const Metrics other = real_label_metrics(lists, {"a", "b", "c"}, predicted, {"b", "c", "a"});
  EXPECT_DOUBLE_EQ(other.at("real.accuracy"), 100.0 / 3.0);
}

TEST_F(RealLabels, ThatDoNotFitAreRefusedInOneLine) {
  EXPECT_THAT(refusal("[[0], [1]]"), HasSubstr("real.json: it has labels of 2 images, but the test "
                                               "split of 'three' has 4; choose the split of 2"));
  EXPECT_THAT(refusal("[[0], [1], [3], []]"),
              HasSubstr("'three' has 3 classes, but no class 3; choose one below 3"));
  EXPECT_THAT(refusal("[[0], [1], [-1], []]"), HasSubstr("no class -1"));
  EXPECT_THAT(refusal("[[], [], [], []]"), HasSubstr("no image has a label; give"));
  EXPECT_THAT(refusal("{}"), HasSubstr("'labels' must be a list"));
  EXPECT_THAT(refusal("[0, 1, 2, 0]"), HasSubstr("'labels' must be a list"));
  EXPECT_THAT(refusal("[[\"0\"], [], [], []]"), HasSubstr("'label' must be"));
}

TEST_F(RealLabels, AreInTheOrderOfTheNumbersOfFiles) {
  const test::ScopedEnv no_data("MOESAIC_DATA", std::nullopt);
  const auto add = [&](const std::string& name) {
    test::write_file(folder / "images/val" / name, test::plain_png_bytes(4, 4, {1, 2, 3}));
  };
  for (const char* split : {"train", "val"}) {
    for (const char* name : {"n1", "n2"}) fs::create_directories(folder / "images" / split / name);
  }
  test::write_file(folder / "images/train/n1/a.png", test::plain_png_bytes(4, 4, {1, 2, 3}));
  add("n1/ILSVRC2012_val_00000003.png");
  add("n2/ILSVRC2012_val_00000001.png");
  add("n2/ILSVRC2012_val_00000002.png");
  const auto open = [&] { return open_dataset((folder / "images").string(), "test"); };
  const fs::path file = labels("[[0], [1], [1, 0]]");
  EXPECT_EQ(read_real_labels(file, *open()), (LabelLists{{1, 0}, {0}, {1}}));
  const auto renamed = [&](const std::string& name) {
    fs::rename(folder / "images/val/n1/ILSVRC2012_val_00000003.png",
               folder / "images/val/n1" / name);
    const std::string said = test::usage_of([&] { read_real_labels(file, *open()); });
    fs::rename(folder / "images/val/n1" / name,
               folder / "images/val/n1/ILSVRC2012_val_00000003.png");
    return said;
  };
  for (const char* name : {"one.png", "x_00000004.png", "x_0.png"}) {
    EXPECT_THAT(renamed(name), AllOf(HasSubstr(name), HasSubstr("another number from 1 to 3")));
  }
  EXPECT_THAT(renamed("x_1.png"), HasSubstr("does not tell which labels are its own"));
}

/// A network of twelve classes, whose data call them by numbers in the order of text.
class NumberedClasses : public ::testing::Test {
 protected:
  NumberedClasses() {
    const std::vector<std::string> changes = {"phases=" + phases(), "model.num_classes=12"};
    Trainer(config_of(four_phases(), changes), options_with(named())).run();
    options.checkpoint = folder / "run";
    options.data = "dozen";
    options.split = "test";
  }
  static std::string phases() {
    return R"([{"name": "train", "data": "dozen", "batch_size": 12, "steps": 3,
                "optimizer": {"name": "adamw", "lr": 0.01}}])";
  }
  static std::vector<std::string> named() {
    std::vector<std::string> names;
    for (char c = 'a'; c <= 'l'; ++c) names.emplace_back(1, c);
    return names;
  }
  /// The same images whatever their classes are called and in whichever order: image i is of the
  /// class whose place in the alphabet is i.
  static DatasetOpener opener(const std::vector<std::string>& names,
                              const std::vector<int64_t>& order) {
    return [=](std::string_view name, std::string_view split) {
      DatasetInfo info{std::string(name), std::string(split), "", {}, 1, 4, 4, {0.4}, {0.3}};
      std::vector<uint8_t> pixels, place(12);
      for (size_t i = 0; i < 12; ++i) {
        info.classes.push_back(names[static_cast<size_t>(order[i])]);
        place[static_cast<size_t>(order[i])] = static_cast<uint8_t>(i);
      }
      for (int i = 0; i < 12 * 16; ++i) pixels.push_back(static_cast<uint8_t>(i / 16 * 20 + i % 7));
      return make_memory_dataset(info, pixels, place);
    };
  }
  static std::vector<int64_t> alphabetical() { return {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}; }
  static std::vector<int64_t> as_text() { return {0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9}; }
  static std::vector<std::string> numbers() {
    std::vector<std::string> names;
    for (int i = 0; i < 12; ++i) names.push_back(std::to_string(i));
    return names;
  }
  TrainerOptions options_with(const std::vector<std::string>& names) const {
    TrainerOptions training = options_for(folder / "run");
    training.open = opener(names, alphabetical());
    return training;
  }

  TempDir folder;
  EvaluateCheckpointOptions options;
};

TEST_F(NumberedClasses, AreTheOutputsOfTheseNumbersWhateverTheirOrder) {
  options.open = opener(named(), alphabetical());
  const CheckpointEvaluation whole = evaluate_checkpoint(options);
  options.open = opener(numbers(), as_text());
  for (const ClassNameSource from : {ClassNameSource::checkpoint, ClassNameSource::data}) {
    options.class_name_source = from;
    CheckpointEvaluation found;
    const std::string said = test::said_by([&] { found = evaluate_checkpoint(options); });
    EXPECT_THAT(said, HasSubstr("a class that is named by a number is the output of that number; "
                                "classes are shown by these numbers"));
    EXPECT_THAT(said, Not(HasSubstr("the data's class names count")));
    EXPECT_EQ(found.evaluation.metric("loss"), whole.evaluation.metric("loss"));
    EXPECT_EQ(found.classes, numbers());
  }
}

TEST_F(NumberedClasses, ReaLLabelsAreThoseNumbersToo) {
  std::string json = "[";
  for (int i = 0; i < 12; ++i) json += (i > 0 ? ", [" : "[") + std::to_string(i) + "]";
  test::put(folder / "real.json", json + "]");
  options.real_labels = folder / "real.json";
  for (const bool numbered : {false, true}) {
    options.open = numbered ? opener(numbers(), as_text()) : opener(named(), alphabetical());
    const CheckpointEvaluation found = evaluate_checkpoint(options);
    EXPECT_EQ(found.evaluation.metric("real.accuracy"), found.evaluation.metric("accuracy"));
    EXPECT_EQ(to_json(found)["real"]["images"], 12);
    EXPECT_THAT(to_text(found), HasSubstr("ReaL             "));
  }
}

TEST_F(NumberedClasses, AreNoneWhereOneIsNoNumber) {
  std::vector<std::string> names = numbers();
  names[9] = "extra";
  options.open = opener(names, as_text());
  EXPECT_THAT(
      test::usage_of([&] { evaluate_checkpoint(options); }),
      AllOf(HasSubstr("the class 'extra' is not a class of the network; the network has 0, 1, 2"),
            HasSubstr("name each class by the number of its output, or choose data of the "
                      "network's classes")));
}

}  // namespace
}  // namespace moesaic
