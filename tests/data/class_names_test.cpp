// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/views.h"

#include <ATen/ATen.h>

#include "data/data_fixture.h"
#include "moesaic/data/dataset.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::usage_of;

DatasetInfo named(std::vector<std::string> classes) {
  return {.name = "pets",
          .split = "test",
          .classes = std::move(classes),
          .channels = 1,
          .height = 1,
          .width = 1};
}

/// An image of each class in turn.
std::shared_ptr<const Dataset> images_of(const std::vector<std::string>& classes) {
  std::vector<uint8_t> labels;
  for (size_t i = 0; i < classes.size(); ++i) labels.push_back(static_cast<uint8_t>(i));
  return make_memory_dataset(named(classes), labels, labels);
}

std::string refusal(const std::vector<std::string>& own, const std::vector<std::string>& outputs) {
  return usage_of([&] { with_classes_of(images_of(own), outputs, "set new_head"); });
}

TEST(ClassNames, LabelsAreThoseOfTheOutputsOfTheirNames) {
  const auto data = with_classes_of(images_of({"ship", "dog", "cat"}), {"cat", "dog", "ship"});
  EXPECT_THAT(data->info().classes, ElementsAre("cat", "dog", "ship"));
  EXPECT_THAT(test::labels_of(*data), ElementsAre(2, 1, 0));
  EXPECT_EQ(test::image_of(*data, 2).at(0), 2);  // The images stay.
}

TEST(ClassNames, DataMayHaveFewerClasses) {
  const auto data = with_classes_of(images_of({"ship"}), {"cat", "dog", "ship"});
  EXPECT_THAT(test::labels_of(*data), ElementsAre(2));
  EXPECT_EQ(data->info().classes.size(), 3U);
}

TEST(ClassNames, WithoutNamesOrDifferencesTheDataStay) {
  const auto data = images_of({"cat", "dog"});
  EXPECT_EQ(with_classes_of(data, {}), data);
  EXPECT_EQ(with_classes_of(data, {"cat", "dog"}), data);
}

TEST(ClassNames, GeneratedLabelsAreMappedToo) {
  DatasetInputs inputs;
  inputs.values_NCHW = at::zeros({3, 1, 1, 2});
  inputs.labels_N = at::tensor({0, 1, 1}, at::kLong);
  const auto data = with_classes_of(make_input_dataset(named({"b", "a"}), inputs), {"a", "b"});
  EXPECT_THAT(test::labels_of(*data), ElementsAre(1, 0, 0));
  EXPECT_TRUE(at::equal(data->inputs().labels_N, at::tensor({1, 0, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(data->generate(0, 1).labels_N, at::tensor({1}, at::kLong)));
}

TEST(ClassNames, AnUnknownOneIsAnErrorWithTheNearestAndTheWayOut) {
  EXPECT_EQ(
      refusal({"cat", "dgo"}, {"cat", "dog"}),
      "'pets': the class 'dgo' is not a class of the network; the nearest is 'dog'; set new_head");
  EXPECT_EQ(refusal({"apple", "cow"}, {"cat", "dog"}),
            "'pets': the class 'apple' is not a class of the network; the network has cat, dog; "
            "set new_head");
  EXPECT_THAT(refusal({"cafe\u0301"}, {"caf\u00e9"}),
              HasSubstr("the nearest is 'caf\u00e9' (caf\\u{e9}, not cafe\\u{301})"));
  EXPECT_THAT(refusal({"crane", "cat"}, {"cat", "crane", "crane"}),
              HasSubstr("two outputs of the network have the name of the class 'crane'"));
}

TEST(ClassNames, AreTextThatCanBeStored) {
  const auto problem = [](const std::string& name) {
    return failure_of([&] { images_of({"cat", name}); });
  };
  EXPECT_EQ(problem("caf\xe9"),
            "dataset 'pets': the name 'caf\\xe9' of class 1 is not UTF-8; rename it");
  EXPECT_THAT(problem("do\ng"), HasSubstr("the name 'do\\ng' of class 1 has a control character"));
  EXPECT_THAT(problem("do\xc2\x85"), HasSubstr("has a control character"));
  EXPECT_THAT(problem(""), HasSubstr("the name '' of class 1 is empty"));
  EXPECT_EQ(images_of({"caf\u00e9"})->info().classes[0], "caf\u00e9");
}

}  // namespace
}  // namespace moesaic
