// SPDX-License-Identifier: Apache-2.0
// Outputs keep their names from network to network and from phase to phase.

#include "moesaic/checkpoint/store.h"
#include "moesaic/data/views.h"
#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using ClassNamesRun = test::InFolder;

/// The images of "three": "turned" has its classes in another order, "foreign" under other names,
/// "mixed" too, but not of its training images.
std::shared_ptr<const Dataset> open_named(std::string_view name, std::string_view split) {
  if (name == "three" || name == "two") return open_tiny(name, split);
  if (name == "mixed" && split == "train") return make_renamed(open_tiny("three", split), "mixed");
  const auto base = make_renamed(open_tiny("three", split), std::string(name));
  if (name == "turned") {
    return make_class_subset(base, {"class 2", "class 0", "class 1"}, std::string(name));
  }
  DatasetInfo info = base->info();
  info.classes = {"cat", "dog", "ship"};
  std::vector<uint8_t> pixels(static_cast<size_t>(base->size() * 16)), labels;
  for (int64_t i = 0; i < base->size(); ++i) {
    base->image(i, pixels.data() + i * 16);
    labels.push_back(static_cast<uint8_t>(base->label(i)));
  }
  return make_memory_dataset(info, pixels, labels);
}

void train_named(const fs::path& out, const std::string& phases, const std::string& init = "",
                 bool resume = false, int64_t until = 1000) {
  std::string text =
      R"({"name": "named", "seed": 5, "checkpoint_every": 1, "num_loader_threads": 0, )";
  text += init.empty() ? std::string("\"model\": ") + kModel : "\"init\": \"" + init + "\"";
  TrainerOptions options = options_for(out, resume);
  options.open = open_named;
  options.on_step = [until](Model&, int64_t step) { return step < until; };
  Trainer(config_of(text + ", \"phases\": [" + phases + "]}"), options).run();
}

std::string phase_on(const std::string& name, const std::string& data, bool new_head = false) {
  return R"({"name": ")" + name + R"(", "data": ")" + data +
         R"(", "batch_size": 6, "steps": 3, "optimizer": {"name": "sgd", "lr": 0.1}, "on_entry":
         {"new_head": )" +
         (new_head ? "true" : "false") + "}}";
}

std::vector<std::string> outputs_of(const fs::path& checkpoint) {
  return class_names_of(load_checkpoint(checkpoint));
}

TEST_F(ClassNamesRun, InitKeepsThemWhateverTheOrderOfTheData) {
  train_named(folder / "first", phase_on("a", "three"));
  const std::string init = (folder / "first").string();
  train_named(folder / "same", phase_on("b", "three"), init);
  train_named(folder / "turned", phase_on("b", "turned"), init);
  EXPECT_THAT(outputs_of(folder / "turned/checkpoints/b"),
              ElementsAre("class 0", "class 1", "class 2"));
  EXPECT_TRUE(read_text(folder / "same/checkpoints/b/model.safetensors") ==
              read_text(folder / "turned/checkpoints/b/model.safetensors"));
}

TEST_F(ClassNamesRun, OtherNamesNeedANewHead) {
  train_named(folder / "first", phase_on("a", "three"));
  const std::string init = (folder / "first").string();
  EXPECT_THAT(
      error_of([&] { train_named(folder / "b", phase_on("b", "foreign"), init); }),
      AllOf(HasSubstr("usage: "),
            HasSubstr("phase 'b': 'foreign': the class 'cat' is not a class of the network; "
                      "the network has class 0, class 1, class 2; set \"on_entry\": {\"new_head\": "
                      "true} for a head of the data's classes")));
  EXPECT_FALSE(fs::exists(folder / "b"));
  train_named(folder / "b", phase_on("b", "foreign", true), init);
  EXPECT_THAT(outputs_of(folder / "b/checkpoints/b"), ElementsAre("cat", "dog", "ship"));
}

TEST_F(ClassNamesRun, ANewHeadIsNotAdvisedWhereItDoesNotHelp) {
  train_named(folder / "first", phase_on("a", "three"));
  const std::string init = (folder / "first").string();
  for (const bool new_head : {false, true}) {
    EXPECT_THAT(
        error_of([&] { train_named(folder / "b", phase_on("b", "mixed", new_head), init); }),
        AllOf(HasSubstr("'mixed': the class 'cat' is not a class of the network; the network has"),
              HasSubstr("; rename the class, or leave it out")));
  }
}

TEST_F(ClassNamesRun, PhasesShareThem) {
  const std::string three = phase_on("a", "three");
  train_named(folder / "run", three + ", " + phase_on("b", "turned") + ", " +
                                  phase_on("c", "foreign", true) + ", " +
                                  R"({"name": "d", "data": "turned", "steps": 0,
                                      "on_entry": {"restore": "b"}})");
  EXPECT_THAT(outputs_of(folder / "run/checkpoints/b"),
              ElementsAre("class 0", "class 1", "class 2"));
  EXPECT_THAT(outputs_of(folder / "run/checkpoints/c"), ElementsAre("cat", "dog", "ship"));
  EXPECT_THAT(outputs_of(folder / "run/checkpoints/d"),
              ElementsAre("class 0", "class 1", "class 2"));
  EXPECT_THAT(error_of([&] { train_named(folder / "x", three + ", " + phase_on("b", "foreign")); }),
              HasSubstr("phase 'b': 'foreign': the class 'cat' is not a class of the network"));
}

TEST_F(ClassNamesRun, AResumedPhaseKeepsThemWithoutInit) {
  train_named(folder / "first", phase_on("a", "turned"));
  const std::string init = (folder / "first").string(), phases = phase_on("b", "three");
  train_named(folder / "whole", phases, init);
  train_named(folder / "run", phases, init, false, 1);
  fs::remove_all(folder / "first");
  train_named(folder / "run", phases, init, true);
  EXPECT_THAT(outputs_of(folder / "run/checkpoints/b"),
              ElementsAre("class 2", "class 0", "class 1"));
  EXPECT_TRUE(read_text(folder / "whole/checkpoints/b/model.safetensors") ==
              read_text(folder / "run/checkpoints/b/model.safetensors"));
}

}  // namespace
}  // namespace moesaic
