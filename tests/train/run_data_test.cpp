// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_folder.h"

#include <fmt/format.h>

#include <span>

#include "data/png_bytes.h"
#include "moesaic/base/hash.h"
#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

DataRecord record_of(std::vector<std::string> classes, std::vector<uint8_t> labels) {
  DatasetInfo info{"few", "train", "", std::move(classes), 1, 1, 1, {0.5}, {0.5}};
  const std::vector<uint8_t> pixels(labels.size());
  return data_record(*make_memory_dataset(info, pixels, std::move(labels)));
}

TEST(DataRecord, SaysHowDataDiffer) {
  const DataRecord before = record_of({"a", "b"}, {0, 1, 1});
  EXPECT_EQ(difference_of(before, record_of({"a", "b"}, {0, 1, 1})), "");
  EXPECT_EQ(difference_of(before, record_of({"a", "b"}, {0, 1, 1, 1})),
            "had 3 examples and has 4 now");
  EXPECT_EQ(difference_of(before, record_of({"a", "b"}, {0, 0, 1})),
            "has other labels, or its images in another order");
  EXPECT_EQ(difference_of(before, record_of({"a", "c", "d"}, {0, 1, 1})),
            "has no class 'b' any more and has new classes 'c', 'd'");
  EXPECT_EQ(difference_of(before, record_of({"c", "d"}, {0, 1, 1})),
            "has no classes 'a', 'b' any more and has new classes 'c', 'd'");
  EXPECT_EQ(difference_of(before, record_of({"a", "b", "c"}, {0, 1, 1})), "has a new class 'c'");
  EXPECT_EQ(difference_of(before, record_of({"b", "a"}, {0, 1, 1})),
            "has its classes in another order");
  const DataRecord again = parse<DataRecord>(Value::from_json(to_json(before), "data.json"));
  EXPECT_EQ(difference_of(before, again), "");
}

/// Images in files of 4 MiB, which remembers what is read of them.
class LargeFiles final : public Dataset {
 public:
  LargeFiles() : Dataset({"large", "train", "", {"a"}, 3, 1, 1, {0.5, 0.5, 0.5}, {1, 1, 1}}) {}
  int64_t size() const override { return 1000; }
  int64_t label(int64_t) const override { return 0; }
  void oriented_image(int64_t, std::optional<bool>, uint8_t*) const override {}
  std::optional<ImageFile> file(int64_t index) const override {
    return ImageFile{std::to_string(index), index == changed ? 1 : 4 << 20};
  }
  std::optional<EncodedImage> encoded(int64_t index) const override {
    read.push_back(index);
    return EncodedImage{"image", false, ""};
  }

  int64_t changed = -1;
  mutable std::vector<int64_t> read;
};

TEST(DataRecord, LargeFilesAreReadAtEqualDistancesAndAllSizesCount) {
  LargeFiles data;
  const DataRecord before = data_record(data);
  ASSERT_THAT(data.read,
              ::testing::SizeIs(::testing::AllOf(::testing::Gt(7U), ::testing::Le(16U))));
  const int64_t step = data.read[1];
  EXPECT_GE(data.read.back(), data.size() - step);
  for (size_t i = 0; i < data.read.size(); ++i) {
    EXPECT_EQ(data.read[i], static_cast<int64_t>(i) * step);
  }
  data.changed = 999;
  EXPECT_EQ(difference_of(before, data_record(data)), "has image files of other names or sizes");
}

/// Files whose names and sizes tell their order.
class ManyFiles final : public Dataset {
 public:
  ManyFiles() : Dataset({"many", "train", "", {"a"}, 3, 1, 1, {0.5, 0.5, 0.5}, {1, 1, 1}}) {}
  int64_t size() const override { return 40'000; }
  int64_t label(int64_t) const override { return 0; }
  void oriented_image(int64_t, std::optional<bool>, uint8_t*) const override {}
  std::optional<ImageFile> file(int64_t index) const override {
    return ImageFile{std::to_string(index), index};
  }
};

TEST(DataRecord, NamesAndSizesThatThreadsAskForCountInTheirOrder) {
  const ManyFiles data;
  Sha256 hash;
  for (int64_t i = 0; i < data.size(); ++i) {
    const std::string name = std::to_string(i);
    hash.update(std::as_bytes(std::span(name)));
    hash.update(std::as_bytes(std::span(&i, 1)));
  }
  EXPECT_EQ(data_record(data).files, hash.hex().substr(0, 16));
}

/// A run on a folder of images, which change.
class ChangedData : public ::testing::Test {
 protected:
  ChangedData() {
    for (const char* split : {"train", "val"}) {
      for (int i = 0; i < 12; ++i) put(fmt::format("{}/{}/{}.png", split, i % 3, i), i);
    }
  }

  fs::path data() const { return folder_ / "data"; }
  void put(const std::string& file, int brightness) const {
    std::vector<uint8_t> pixels(4 * 4 * 3, static_cast<uint8_t>(20 * brightness));
    fs::create_directories((data() / file).parent_path());
    write_atomic(data() / file, text_of(test::png_bytes(4, 4, pixels)));
  }
  static std::string text_of(const std::vector<uint8_t>& bytes) {
    return {bytes.begin(), bytes.end()};
  }

  /// Trains to step 2 of 4, or from there to the end.
  void run(bool resume, std::vector<std::string> changes = {}) const {
    changes.emplace_back("model.channels=3");
    const RunConfig config = config_of(
        std::string(
            R"({"name": "changed", "seed": 3, "checkpoint_every": 1, "num_loader_threads": 0,
            "model": )") +
            kModel + R"(, "phases": [{"name": "train", "data": ")" + data().string() + R"(",
            "batch_size": 4, "steps": 4, "preprocess": {"size": 4}}]})",
        changes);
    TrainerOptions options = options_for(folder_ / "run", resume);
    options.open = DatasetOpener();
    if (!resume) options.on_step = [](Model&, int64_t step) { return step < 2; };
    Trainer(config, options).run();
  }
  std::string resume(const std::vector<std::string>& changes = {}) const {
    return error_of([&] { run(true, changes); });
  }
  /// Returns what resuming says, which goes on.
  std::string said_by_resuming(const std::vector<std::string>& changes = {}) const {
    return test::said_by([&] { EXPECT_EQ(resume(changes), "no error"); });
  }
  /// Returns what recording the data says.
  std::string said_by_recording(bool warns = true) const {
    RunConfig config;
    config.phases.resize(1);
    config.phases[0].data = data().string();
    DatasetCache datasets;
    return test::said_by(
        [&] { EXPECT_EQ(record_data(config, datasets, warns).splits.size(), 2U); });
  }

  TempDir folder_;
};

TEST_F(ChangedData, TheSameDataGoOn) {
  run(false);
  EXPECT_EQ(resume(), "no error");
}

TEST_F(ChangedData, OfAProjectThatWasMovedGoOnWhereTheyAreTheSame) {
  run(false);
  const fs::path there = folder_ / "elsewhere";
  fs::rename(data(), there);
  const std::vector<std::string> moved = {"phases.train.data=" + there.string()};
  fs::rename(there / "train/0/3.png", there / "train/1/3.png");
  EXPECT_THAT(resume(moved), HasSubstr("the train split of '" + there.string() + "' (then '" +
                                       data().string() + "') has changed: it has other labels"));
  fs::rename(there / "train/1/3.png", there / "train/0/3.png");
  EXPECT_EQ(resume(moved), "no error");
  EXPECT_EQ(resume(moved), "no error");  // This is where they are now.
}

TEST_F(ChangedData, WithoutARecordOfLabelsHaveTheirOldPath) {
  run(false);
  fs::rename(data(), folder_ / "elsewhere");
  const fs::path record = folder_ / "run/data.json";
  auto json = nlohmann::json::parse(read_text(record));
  for (auto& split : json.at("splits")) split.erase("labels");
  write_atomic(record, json.dump());
  EXPECT_THAT(resume({"phases.train.data=" + (folder_ / "elsewhere").string()}),
              HasSubstr("'phases.0.data' was \"" + data().string() + "\" and is"));
}

TEST(MovedData, AreNoDataThatPhasesExchange) {
  const DataRecord record = record_of({"a", "b"}, {0, 1, 1});
  const auto moved = [&](const std::string& first, const std::string& second) {
    RunData before;
    for (const char* name : {"/old/a train", "/old/b train"}) before.splits[name] = record;
    RunConfig now;
    now.phases.resize(2);
    now.phases[0].data = first;
    now.phases[1].data = second;
    auto started =
        nlohmann::ordered_json::parse(R"({"phases": [{"data": "/old/a"}, {"data": "/old/b"}]})");
    return follow_moved_data(now, started, before);
  };
  EXPECT_THAT(moved("/new/a", "/new/b"),
              ::testing::ElementsAre(::testing::Pair("/new/a", "/old/a"),
                                     ::testing::Pair("/new/b", "/old/b")));
  EXPECT_THAT(moved("/old/b", "/old/a"), ::testing::IsEmpty());
  EXPECT_THAT(moved("/new/a", "/new/a"),  // The data of both phases do not lie there.
              ::testing::ElementsAre(::testing::Pair("/new/a", "/old/a")));
  EXPECT_THAT(moved("mnist", "/old/b"), ::testing::IsEmpty());
}

TEST(MovedData, TheirProjectsInitMayHaveMovedToo) {
  const TempDir folder;
  RunConfig now;
  now.init = (folder / "new").string();
  const auto after = [&] {
    RunData before;
    nlohmann::ordered_json started = {{"init", (folder / "old").string()}};
    follow_moved_data(now, started, before);
    return started.at("init").get<std::string>();
  };
  EXPECT_EQ(after(), now.init);
  fs::create_directory(folder / "old");  // It is another one.
  EXPECT_EQ(after(), (folder / "old").string());
}

TEST(MovedData, TheNetworkThatPruningComparesWithMayHaveMovedToo) {
  const TempDir folder;
  RunConfig now;
  now.phases.resize(1);
  now.phases[0].on_entry.prune.emplace();
  const auto after = [&](const std::string& then, const std::string& here) {
    RunData before;
    auto started = nlohmann::ordered_json::parse(
        R"({"phases": [{"data": "three", "on_entry": {"prune": {"pretrained": ""}}}]})");
    auto& pretrained = started["phases"][0]["on_entry"]["prune"]["pretrained"];
    pretrained = then;
    now.phases[0].on_entry.prune->pretrained = here;
    follow_moved_data(now, started, before);
    return pretrained.get<std::string>();
  };
  const std::string old = (folder / "old").string(), there = (folder / "new").string();
  EXPECT_THAT(test::said_by([&] { EXPECT_EQ(after(old, there), there); }),
              HasSubstr(" was " + old + ", which no longer exists; " + there + " is assumed"));
  EXPECT_EQ(test::said_by([&] { EXPECT_EQ(after(there, there), there); }), "");
  EXPECT_EQ(after("pretrain", there), "pretrain");  // It was a phase, not a path.
  EXPECT_EQ(after(old, "pretrain"), old);
  fs::create_directory(folder / "old");  // It is another one.
  EXPECT_EQ(after(old, there), old);
}

TEST_F(ChangedData, AFileOfTwoSplitsOrClassesIsNamedInOneLine) {
  const auto said = [&] {
    fs::remove_all(folder_ / "run");
    const std::string text = test::said_by([&] { run(false); });
    const size_t at = text.find("warning: ");
    return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
  };
  fs::create_hard_link(data() / "train/0/3.png", data() / "train/0/same class.png");
  EXPECT_EQ(said(), "");
  fs::remove(data() / "val/1/4.png");
  fs::create_hard_link(data() / "train/1/4.png", data() / "val/1/4.png");
  EXPECT_THAT(said(), HasSubstr("1 file is read under two names, in different splits or classes: "
                                "'train: 1/4.png and test: 1/4.png'; remove one name of each"));
  fs::create_hard_link(data() / "train/2/5.png", data() / "train/0/other class.png");
  EXPECT_THAT(said(), AllOf(HasSubstr("2 files are read under two names"),
                            HasSubstr("'train: 0/other class.png and train: 2/5.png'")));
  put("pool/6.png", 6);  // It is none of a split, so that no link to it is left out.
  for (const char* name : {"0/linked.png", "1/linked.png"}) {
    fs::create_symlink(data() / "pool/6.png", data() / "train" / name);
  }
  EXPECT_THAT(said(), HasSubstr("'train: 0/linked.png and train: 1/linked.png'"));
}

TEST_F(ChangedData, AFileOfTwoSplitsIsLookedForWhereThatIsAsked) {
  fs::remove(data() / "val/1/4.png");
  fs::create_hard_link(data() / "train/1/4.png", data() / "val/1/4.png");
  EXPECT_THAT(said_by_recording(), HasSubstr("read under two names"));
  EXPECT_THAT(said_by_recording(/*warns=*/false), Not(HasSubstr("read under two names")));
}

TEST_F(ChangedData, OneClassAloneIsWarnedOfWhereItIsTrainedOn) {
  for (const char* split : {"val", "train"}) {
    EXPECT_THAT(said_by_recording(), Not(HasSubstr("one class"))) << "with all classes in train";
    for (const char* name : {"0", "2"}) {
      for (const auto& file : fs::directory_iterator(data() / split / name)) fs::remove(file);
    }
  }
  EXPECT_THAT(said_by_recording(), HasSubstr("all 4 training examples are of one class, '1'"));
  EXPECT_THAT(said_by_recording(/*warns=*/false), Not(HasSubstr("one class")));
}

TEST_F(ChangedData, AreNamedInOneLineUnlessTheyAreAccepted) {
  run(false);
  put("train/0/more.png", 5);
  EXPECT_THAT(resume(),
              AllOf(HasSubstr("usage: "), HasSubstr("run: since the run began, the train split of"),
                    HasSubstr("has changed: it had 12 examples and has 13 now; put the "
                              "data back, give another --out, or resume with "
                              "data_changed=accept")));
  EXPECT_THAT(said_by_resuming({"data_changed=accept"}),
              HasSubstr("it had 12 examples and has 13 now; accepted"));
  EXPECT_EQ(resume(), "no error");  // They are the run's now.
}

TEST_F(ChangedData, WhichImagesWereDamagedIsForgotten) {
  const auto replaced_at = [&](int step) {
    const fs::path state = folder_ / fmt::format("run/checkpoints/step_{}/state.json", step);
    return nlohmann::json::parse(read_text(state)).at("phase_state").at("replaced").size();
  };
  write_atomic(data() / "train/0/3.png", "no image");
  const std::string all = "phases.train.batch_size=12";
  test::said_by([&] { run(false, {all}); });
  EXPECT_EQ(replaced_at(2), 1U);
  put("train/0/3.png", 3);
  EXPECT_THAT(said_by_resuming({"data_changed=accept", all}),
              HasSubstr("accepted, and no image counts as corrupt before it is read"));
  EXPECT_EQ(replaced_at(4), 0U);
}

TEST_F(ChangedData, WithShorterEpochsMayHaveNoStepsLeft) {
  std::vector<std::string> settings = {"phases.train.steps=null", "phases.train.epochs=1"};
  run(false, settings);
  for (int i = 4; i < 12; ++i) fs::remove(data() / fmt::format("train/{}/{}.png", i % 3, i));
  settings.emplace_back("data_changed=accept");
  EXPECT_EQ(resume(settings), "no error");
}

TEST_F(ChangedData, AnImageOfAnotherClassIsNoticed) {
  run(false);
  fs::rename(data() / "train/0/3.png", data() / "train/1/3.png");
  EXPECT_THAT(resume(), HasSubstr("has other labels"));
}

TEST_F(ChangedData, AnotherImageOfTheSameNameIsNoticed) {
  run(false);
  put("val/2/8.png", 9);
  EXPECT_THAT(resume(), AllOf(HasSubstr("the test split"), HasSubstr("has other image files")));
}

TEST_F(ChangedData, AFileOfAnotherNameOrSizeIsNoticedAmongMany) {
  for (int i = 100; i < 300; ++i) put(fmt::format("train/0/many_{}.png", i), i % 12);
  run(false);
  const fs::path file = data() / "train/0/many_101.png";  // It is none of those that are read.
  fs::rename(file, data() / "train/0/many_101_.png");
  EXPECT_THAT(resume(), HasSubstr("it has image files of other names or sizes; put the data back"));
  fs::rename(data() / "train/0/many_101_.png", file);
  EXPECT_EQ(resume(), "no error");
}

TEST_F(ChangedData, ARecordWithoutNamesAndSizesOfFilesIsNotHeldAgainstThem) {
  run(false);
  const fs::path record = folder_ / "run/data.json";
  auto json = nlohmann::json::parse(read_text(record));
  for (auto& split : json.at("splits")) {
    ASSERT_NE(split.at("files"), "");
    split.erase("files");
    split["images"] = "another choice";
  }
  write_atomic(record, json.dump());
  EXPECT_EQ(resume(), "no error");
  EXPECT_THAT(read_text(record), HasSubstr("\"files\""));
}

/// Which split decides about `best` follows from those that there are.
TEST_F(ChangedData, ASplitThatCameOrWentIsNoticed) {
  run(false);
  const auto copy = [&](const char* to) {
    fs::copy(data() / "val", data() / to, fs::copy_options::recursive);
  };
  copy("valid");
  EXPECT_THAT(resume(), HasSubstr("the validation split of '" + data().string() +
                                  "' has changed: it was not there; put the data back"));
  EXPECT_THAT(said_by_resuming({"data_changed=accept"}), HasSubstr("it was not there; accepted"));
  EXPECT_EQ(resume(), "no error");
  fs::remove_all(data() / "valid");
  EXPECT_THAT(resume(), HasSubstr("the validation split of '" + data().string() +
                                  "' has changed: it is gone; put the data back"));
}

/// As after a run of a version that held nothing out.
TEST_F(ChangedData, ImagesThatAreHeldOutNowAreNamedAsTheCause) {
  write_atomic(folder_ / "mine.json",
               R"({"name": "mine", "base": ")" + data().string() + R"(", "validation": 0.25})");
  const std::vector<std::string> held_out = {"phases.train.data=" +
                                             (folder_ / "mine.json").string()};
  run(false, held_out);
  const fs::path record = folder_ / "run/data.json";
  auto json = nlohmann::json::parse(read_text(record));
  auto& splits = json.at("splits");
  for (auto split = splits.begin(); split != splits.end();) {
    if (split.key().ends_with("train")) split.value()["examples"] = 12;
    split = split.key().ends_with("validation") ? splits.erase(split) : std::next(split);
  }
  write_atomic(record, json.dump());
  EXPECT_THAT(resume(held_out), HasSubstr("it had 12 examples and has 9 now, since the others are "
                                          "held out for validation; put the data back"));
}

TEST_F(ChangedData, AnotherClassIsNamedAndNeverTakesAnOutput) {
  run(false);
  for (const char* split : {"train", "val"}) fs::rename(data() / split / "2", data() / split / "x");
  EXPECT_THAT(resume(), AllOf(HasSubstr("it has no class '2' any more and has a new class 'x'"),
                              HasSubstr("give another --out, or begin another run with init=" +
                                        (folder_ / "run").string() + " and on_entry.new_head"),
                              ::testing::Not(HasSubstr("data_changed"))));
  EXPECT_THAT(resume({"data_changed=accept"}),
              HasSubstr("the class 'x' is not a class of the network"));
}

TEST_F(ChangedData, ARunWithoutARecordGoesOnAndGetsOne) {
  run(false);
  fs::remove(folder_ / "run/data.json");
  put("train/0/more.png", 5);
  EXPECT_THAT(said_by_resuming(), HasSubstr("data.json is missing, so changes"));
  EXPECT_TRUE(fs::exists(folder_ / "run/data.json"));
}

}  // namespace
}  // namespace moesaic
