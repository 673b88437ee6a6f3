// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <ATen/ATen.h>

#include <algorithm>

#include "data/http_server.h"
#include "data/png_bytes.h"
#include "data/shard_fixture.h"
#include "data/shards.h"
#include "moesaic/data/loader.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/data/views.h"
#include "support/faults.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::HttpServer;
using test::numbered_jpeg;
using test::said_by;
using test::samples;
using test::TarEntry;
using test::text_bytes;
using test::usage_of;

constexpr const char* kOneShard = R"({"train": [{"name": "train-0.tar"}]})";
constexpr const char* kTwoShards = R"({"train": [{"name": "train-{0..1}.tar"}]})";

class Shards : public ::testing::Test {
 protected:
  static std::shared_ptr<const Dataset> sized(std::shared_ptr<const Dataset> data) {
    return preprocessed(std::move(data), PreprocessConfig{.size = 8});
  }
  static int64_t times(const std::string& text, const std::string& part) {
    int64_t count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      ++count;
    }
    return count;
  }
  static int64_t number_at(const Dataset& data, int64_t index) {
    return test::ShardHome::number_at(data, index);
  }
  /// The error of opening the data, without what is written to standard error before.
  std::string failure_to_open() const {
    std::string message;
    said_by([&] { message = failure_of([&] { home_.open(); }); });
    return message;
  }
  /// Describes `split` of one shard, its classes by names.txt.
  void describe_with_names(const std::string& split = "train", const std::string& mark = "") const {
    write_file(home_.path("pets.json"), mark + R"({"name": "pets", "format": "shards",
        "classes_file": "names.txt", "mean": [0.5], "std": [0.5], "paths": ["./"],
        "shards": {")" + split + R"(": [{"name": "train-0.tar"}]}})");
  }
  std::string usage_problem(const std::string& shards, const std::string& rest = "\"paths\": []") {
    home_.describe(shards, rest);
    return usage_of([&] { home_.open(); });
  }

  test::ShardHome home_;
};

TEST_F(Shards, ImagesAndLabelsAreFoundInTheirOrder) {
  home_.write("train-0.tar", {{"a/1.cls", text_bytes("dog\n")},
                              {"a/1.jpg", numbered_jpeg(1)},
                              {"a/1.json", text_bytes("{}")},
                              {"a/2.JPEG", numbered_jpeg(2)},
                              {"a/2.cls", text_bytes(" 0\r\n")},
                              {"._a.jpg", text_bytes("of a Mac")}});
  home_.write("train-1.tar",
              {{"3.png", test::plain_png_bytes(4, 4, {16, 16, 16})}, {"3.cls", text_bytes("1")}});
  home_.describe(kTwoShards);
  std::shared_ptr<const Dataset> data;
  EXPECT_THAT(said_by([&] { data = home_.open(); }), IsEmpty());
  ASSERT_EQ(data->size(), 3);
  EXPECT_THAT(test::labels_of(*data), ElementsAre(1, 0, 1));
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(number_at(*data, i), i + 1);
  EXPECT_THAT(data->blocks(), ElementsAre(2, 1));
  EXPECT_THAT(dataset_splits(home_.name()), ElementsAre("train"));
  EXPECT_THAT(usage_of([&] { home_.open("test"); }), HasSubstr("no test split"));
}

TEST_F(Shards, ClassesMayLieInAFile) {
  home_.write("train-0.tar", samples(0, 2));
  write_file(home_.path("names.txt"), std::string("cat \r\ndog\t\n"));
  describe_with_names("test");
  const auto data = home_.open("test");
  EXPECT_THAT(data->info().classes, ElementsAre("cat", "dog"));
  EXPECT_EQ(data->info().channels, 1);  // As many as mean has.
  EXPECT_EQ(number_at(*data, 1), 1);
}

TEST_F(Shards, AnEmptyLineAmongClassesIsAnError) {
  home_.write("train-0.tar", samples(0, 2));
  describe_with_names();
  write_file(home_.path("names.txt"), std::string("cat\ndog\n\r\n\n"));
  EXPECT_THAT(home_.open()->info().classes, ElementsAre("cat", "dog"));
  write_file(home_.path("names.txt"), std::string("cat\n\r\ndog\n"));
  EXPECT_THAT(failure_to_open(), HasSubstr("names.txt: line 2 is empty; each line names a class"));
}

TEST_F(Shards, ANumberThatIsTheNameOfAnotherClassIsAmbiguous) {
  home_.write("train-0.tar", {{"1.jpg", numbered_jpeg(1)},
                              {"1.cls", text_bytes("1")},
                              {"2.jpg", numbered_jpeg(2)},
                              {"2.cls", text_bytes("2")}});
  const auto describe = [&](const std::string& classes, const std::string& labels) {
    write_file(home_.path("pets.json"),
               R"({"name": "pets", "format": "shards", "mean": [0.5], "std": [0.5],
                   "paths": ["./"], "shards": {"train": [{"name": "train-0.tar"}]}, "classes": )" +
                   classes + labels + "}");
  };
  describe(R"(["3", "2", "1"])", "");
  EXPECT_THAT(usage_of([&] { home_.open(); }),
              AllOf(HasSubstr("class '2' has the number of class '1' for its name"),
                    HasSubstr("set \"labels\" to \"number\" or \"name\"")));
  describe(R"(["3", "2", "1"])", R"(, "labels": "number")");
  EXPECT_THAT(test::labels_of(*home_.open()), ElementsAre(1, 2));
  describe(R"(["3", "2", "1"])", R"(, "labels": "name")");
  EXPECT_THAT(test::labels_of(*home_.open()), ElementsAre(2, 1));
  describe(R"(["0", "1", "2"])", "");
  EXPECT_THAT(test::labels_of(*home_.open()), ElementsAre(1, 2));
  describe(R"(["cat", "dog", "20"])", "");
  EXPECT_THAT(test::labels_of(*home_.open()), ElementsAre(1, 2));
}

TEST_F(Shards, AByteOrderMarkIsPartOfNoName) {
  std::vector<TarEntry> entries = samples(0, 2);
  entries[1].content = text_bytes("\xEF\xBB\xBF" + std::string("dog\r\n"));
  home_.write("train-0.tar", entries);
  write_file(home_.path("names.txt"), std::string("\xEF\xBB\xBF"
                                                  "cat\r\ndog\r\n"));
  describe_with_names("train", "\xEF\xBB\xBF");
  const auto data = home_.open();
  EXPECT_THAT(data->info().classes, ElementsAre("cat", "dog"));
  EXPECT_THAT(test::labels_of(*data), ElementsAre(1, 1));
  write_file(home_.path("names.txt"), std::string("cat\ndog\ncat\n"));
  EXPECT_THAT(failure_to_open(), HasSubstr("names.txt: the file names class 'cat' twice"));
}

TEST_F(Shards, AMemberOfSeveralEndingsIsNoImage) {
  std::vector<TarEntry> entries = samples(0, 2);
  entries.insert(entries.begin(), {"1000.seg.png", test::plain_png_bytes(4, 4, {1, 2, 3})});
  entries.push_back({"1001.depth.PNG", test::plain_png_bytes(4, 4, {1, 2, 3})});
  home_.write("train-0.tar", entries);
  home_.describe(kOneShard);
  std::shared_ptr<const Dataset> data;
  EXPECT_THAT(said_by([&] { data = home_.open(); }), IsEmpty());
  ASSERT_EQ(data->size(), 2);
  EXPECT_EQ(number_at(*data, 0), 0);
  for (const std::string name : {"a.1.jpg", "a.gif"}) {
    home_.write("train-0.tar", {{name, numbered_jpeg(1)}, {"a.1.cls", text_bytes("0")}});
    EXPECT_THAT(failure_to_open(), HasSubstr("'" + name + "' is none: an image is called KEY.jpg"));
  }
}

TEST_F(Shards, ImagesOfOneSizeNeedNoPreprocessing) {
  home_.write("train-0.tar", samples(0, 2));
  home_.describe(kOneShard, R"("height": 16, "width": 16, "paths": ["./"])");
  const auto data = home_.open();
  EXPECT_NEAR(test::image_of(*data, 1).at(0), 12, 1);
  home_.describe(kOneShard, R"("height": 16, "width": 17, "paths": ["./"])");
  EXPECT_THAT(failure_of([&] { test::image_of(*home_.open(), 0); }),
              AllOf(HasSubstr("train-0.tar/1000.jpg"), HasSubstr("16 x 16")));
}

TEST_F(Shards, ADamagedOneIsNamedOnceAndSkippedWithinTheLimit) {
  home_.write("train-0.tar", samples(0, 100));
  Bytes second = home_.write("train-1.tar", samples(100, 100));
  home_.describe(R"({"train": [{"name": "train-{0..1}.tar", "num_images": 100}]})");
  const size_t sample = second.size() / 100;
  second.resize(second.size() - sample - sample / 2);  // Ends within the last image.
  write_file(home_.path("train-1.tar"), second);
  const LoaderOptions options{.batch_size = 50, .num_threads = 2};
  std::vector<int64_t> labels;
  const std::string said = said_by([&] {
    const auto data = home_.open();
    ASSERT_EQ(data->size(), 200);
    Loader loader(sized(data), options);
    while (!loader.is_done()) labels.push_back(loader.next().labels.sum().item<int64_t>());
  });
  EXPECT_EQ(times(said, "train-1.tar"), 1) << said;
  EXPECT_THAT(said, AllOf(HasSubstr(" after 19"), HasSubstr("; 1 image of it left out")));
  EXPECT_THAT(labels, ElementsAre(25, 25, 25, 24));  // The first image stands for the last one.

  second.resize(second.size() - 4 * sample);
  write_file(home_.path("train-1.tar"), second);
  EXPECT_THAT(failure_to_open(), AllOf(HasSubstr("of 200 train images are lost in corrupt shards"),
                                       HasSubstr("train-1.tar: ")));
}

TEST_F(Shards, SubsetsAndSamplesLeaveOutWhatIsLost) {
  home_.write("train-0.tar", samples(0, 9));
  home_.describe(R"({"train": [{"name": "train-0.tar", "num_images": 10}]})");
  std::shared_ptr<const Dataset> data;
  EXPECT_THAT(said_by([&] { data = home_.open(); }), HasSubstr("9 images, expected 10"));
  EXPECT_EQ(make_class_subset(data, {"dog"}, "dogs")->size(), 4);
  EXPECT_EQ(make_sample(data, 9, 1)->size(), 9);
  EXPECT_THAT(failure_of([&] { make_sample(data, 10, 1); }), HasSubstr("its 9"));
  EXPECT_THROW(data->label(9), ImageError);
}

TEST_F(Shards, ImagesWithoutAUsableLabelAreNamed) {
  const auto problem = [&](const std::vector<TarEntry>& odd) {
    std::vector<TarEntry> entries = samples(0, 8);
    entries.insert(entries.begin() + 4, odd.begin(), odd.end());
    home_.write("train-0.tar", entries);
    home_.describe(kOneShard);
    std::shared_ptr<const Dataset> data;
    const std::string said = said_by([&] { data = home_.open(); });
    EXPECT_EQ(data->size(), 8);
    EXPECT_THAT(said, HasSubstr("; 1 image of it left out"));
    return said;
  };
  const TarEntry image{"x.jpg", numbered_jpeg(9)};
  EXPECT_THAT(problem({image}), HasSubstr("'x.jpg': no x.cls with its class"));
  EXPECT_THAT(problem({image, {"x.cls", text_bytes("dogg")}}),
              HasSubstr("unknown class 'dogg'; did you mean 'dog'?"));
  EXPECT_THAT(problem({image, {"x.cls", text_bytes("2")}}),
              HasSubstr("class 2 does not exist: the 2 classes are numbered 0 to 1"));
  EXPECT_THAT(problem({image, {"x.cls", text_bytes("-1")}}), HasSubstr("unknown class '-1'"));
  EXPECT_THAT(problem({image, {"x.cls", text_bytes("")}}), HasSubstr("unknown class ''"));
  EXPECT_THAT(problem({image, {"x.cls", Bytes(5000, '1')}}), HasSubstr("its .cls has 5000 bytes"));
  EXPECT_THAT(problem({{"1000.png", numbered_jpeg(9)}}), HasSubstr("a second image of the same"));
  EXPECT_THAT(problem({{"1000.jpg", numbered_jpeg(9)}}), HasSubstr("'1000.jpg' is there twice"));
  EXPECT_THAT(problem({{"x.jpg", {}, '2', "1000.jpg"}}), HasSubstr("'x.jpg' is a link"));
  EXPECT_THAT(problem({{"/x.jpg", numbered_jpeg(9)}}), HasSubstr("has an absolute path"));
}

TEST_F(Shards, ManyWithoutALabelAreAnErrorThatNamesTheFirst) {
  std::vector<TarEntry> entries = samples(0, 8);
  entries[1].content = entries[3].content = text_bytes("horse");
  home_.write("train-0.tar", entries);
  home_.describe(kOneShard);
  EXPECT_THAT(failure_to_open(),
              AllOf(HasSubstr("train-0.tar: '1000.jpg': unknown class 'horse'"),
                    HasSubstr("(1 more)"), HasSubstr("2 of 8 train images are lost")));
}

TEST_F(Shards, AnImageThatCannotBeReadIsTriedAgainWithTheShardOpenedAnew) {
  const Bytes whole = home_.write("train-0.tar", samples(0, 4));
  home_.describe(kOneShard);
  const test::fs::path shard = home_.path("train-0.tar");
  bool returns = true;
  ShardFile described;
  described.name = "train-0.tar";
  const ShardImages images(
      home_.open()->info(), {PlacedShard{described, shard}}, [](const PlacedShard&) {},
      [&](std::chrono::milliseconds) {
        test::fs::remove(shard);
        if (returns) write_file(shard, whole);
      });
  EXPECT_EQ(number_at(images, 1), 1);
  test::fs::resize_file(shard, 100);
  said_by([&] { EXPECT_EQ(number_at(images, 2), 2); });
  returns = false;
  test::fs::resize_file(shard, 100);
  said_by([&] { EXPECT_THROW(images.encoded(3), IoError); });
}

TEST_F(Shards, AnIndexThatAFaultCutsShortIsNone) {
  NEEDS_FAULTS();
  home_.write("train-0.tar", samples(0, 8));
  const ClassNumbers classes({"cat", "dog"});
  const auto index = [&] {
    if (index_shard(home_.path("train-0.tar"), {}, classes).images.size() != 8) fail("cut short");
  };
  const auto check = [](const test::Outcome& outcome) {
    if (!outcome.fired) return;
    EXPECT_THAT(outcome.error, HasSubstr("train-0.tar: cannot be read: Input/output error"));
  };
  EXPECT_GT(test::for_every_call(
                {"read", "EIO"}, home_.root(), [] {}, index, check),
            8);
}

TEST_F(Shards, AnUnreadableImageIsReplacedByTheNext) {
  std::vector<TarEntry> entries = samples(0, 8);
  entries[4].content.resize(200);
  home_.write("train-0.tar", entries);
  home_.describe(kOneShard);
  Loader loader(sized(home_.open()), {.batch_size = 8});
  Batch batch;
  EXPECT_THAT(said_by([&] { batch = loader.next(); }), HasSubstr("train-0.tar/1002.jpg: "));
  EXPECT_EQ(batch.labels[2].item<int64_t>(), 1);
}

TEST_F(Shards, OtherFilesAreRefused) {
  home_.describe(kOneShard);
  EXPECT_THAT(failure_to_open(),
              AllOf(HasSubstr("'train-0.tar' not found"), HasSubstr(home_.root().string())));
  write_file(home_.path("train-0.tar"), test::gzip_bytes(test::tar_bytes(samples(0, 2))));
  EXPECT_THAT(failure_to_open(),
              AllOf(HasSubstr("train-0.tar: compressed by gzip"), HasSubstr("plain .tar")));
  write_file(home_.path("train-0.tar"), Bytes(3000, 'x'));
  EXPECT_THAT(failure_to_open(), HasSubstr("train-0.tar"));
  home_.write("train-0.tar", samples(0, 2));
  home_.describe(R"({"train": [{"name": "train-{0..2}.tar"}]})");
  EXPECT_THAT(failure_to_open(), HasSubstr("'train-1.tar' not"));
}

TEST_F(Shards, DescriptionsAreChecked) {
  const std::string one = R"({"train": [{"name": "a{08..11}.tar", "num_images": 5}]})";
  struct Case {
    std::string shards, message, rest = "\"paths\": []";
  };
  for (const auto& [shards, message, rest] : std::vector<Case>{
           {"{}", "shards is missing"},
           {R"({"trian": [{"name": "a.tar"}]})", "'trian'"},
           {R"({"train": []})", "shards.train is empty"},
           {R"({"train": [{"name": "b/a.tar"}]})", "without folders"},
           {R"({"train": [{"name": "..tar"}]})", "not '..tar'"},
           {R"({"train": [{"name": "a.tar.gz"}]})", "uncompressed"},
           {R"({"train": [{"name": ")" + std::string(252, 'a') + R"(.tar"}]})",
            "of at most 255 bytes"},
           {R"({"test": [{"name": "b.tar"}], "train": [{"name": "a{00000..49999}.tar"}]})",
            "shards.train: more than 50000 files at 'a{00000..49999}.tar'"},
           {R"({"train": [{"name": "a{0..9223372036854775807}.tar"}]})", "more than 50000 files"},
           {R"({"train": [{"name": "a.tar", "num_images": 4611686018427387904}]})",
            "between 0 and 1000000000"},
           {R"({"train": [{"name": "a{3..1}.tar"}]})", "{0000..0127}"},
           {R"({"train": [{"name": "a{1..3}.tar", "size": 5}]})", "one file"},
           {R"({"train": [{"name": "a1.tar"}, {"name": "a{0..1}.tar"}]})", "names 'a1.tar' twice"},
           {R"({"train": [{"name": "a.tar", "sha256": "x"}]})", "64 lower-case"},
           {one, "its shards have 20", R"("num_images": {"train": 21})"},
           {one, "belong together", R"("height": 3)"},
           {one, "need one of classes, classes_file and num_classes", R"("classes_file": "c")"}}) {
    EXPECT_THAT(usage_problem(shards, rest), HasSubstr(message)) << shards << rest;
  }
  for (const char* name : {"../c", "/etc/passwd", "a/b", ".."}) {
    EXPECT_THAT(usage_problem(one, fmt::format(R"("classes_file": "{}")", name)),
                AllOf(HasSubstr("classes_file"), HasSubstr(name)));
  }
  home_.describe(one, R"("num_images": {"train": 20})");
  EXPECT_EQ(DatasetSource(home_.name()).open_metadata("train")->size(), 20);
}

TEST_F(Shards, ShuffledBatchesHaveTheSameBitsForAnyThreadsAndFromTheMiddleOfAShard) {
  for (int i = 0; i < 4; ++i) {
    home_.write("train-" + std::to_string(i) + ".tar", samples(20 * i, 20));
  }
  home_.describe(R"({"train": [{"name": "train-{0..3}.tar", "num_images": 20}]})");
  const auto data = sized(home_.open());
  ASSERT_THAT(data->blocks(), ElementsAre(20, 20, 20, 20));
  LoaderOptions options{.batch_size = 8, .seed = 5, .shuffle = true};
  Loader first(data, options);
  std::vector<at::Tensor> batches;
  for (int i = 0; i < 25; ++i) batches.push_back(first.next().inputs);
  for (const int64_t threads : {1, 8}) {
    options.num_threads = threads;
    Loader other(data, options);
    for (const at::Tensor& batch : batches) EXPECT_TRUE(at::equal(other.next().inputs, batch));
    other.seek(1, 3);  // After 6 of the 20 images of each lane's first shard.
    EXPECT_TRUE(at::equal(other.next().inputs, batches[13]));
  }
}

TEST_F(Shards, AHeldOutValidationSplitIsTheLastImages) {
  home_.write("train-0.tar", samples(0, 12));
  home_.write("train-1.tar", samples(12, 8));
  home_.describe(kTwoShards, R"("paths": ["./"], "validation": 0.5)");
  const auto train = home_.open("train"), validation = home_.open("validation");
  EXPECT_THAT(train->blocks(), ElementsAre(10));
  EXPECT_THAT(validation->blocks(), ElementsAre(2, 8));
  EXPECT_EQ(number_at(*validation, 0), 10);
}

TEST_F(Shards, AreFetchedWhenTheyAreNeeded) {
  const Bytes shards[] = {test::tar_bytes(samples(0, 4)), test::tar_bytes(samples(4, 4))};
  HttpServer server({{"train-0.tar", shards[0]}, {"train-1.tar", shards[1]}});
  const auto listed = [&](int i, const Bytes& bytes) {
    return R"({"name": "train-)" + std::to_string(i) + R"(.tar", "num_images": 4, "size": )" +
           std::to_string(bytes.size()) + R"(, "sha256": ")" + test::hash_of(bytes) + "\"}";
  };
  const std::string described =
      R"({"train": [)" + listed(0, shards[0]) + ", " + listed(1, shards[1]) + "]}";
  const std::string rest = R"("num_images": {"train": 8}, "urls": [")" + server.url() + "\"]";
  home_.describe(described, rest);
  {
    const auto data = home_.open();
    EXPECT_THAT(server.requests(), IsEmpty());
    EXPECT_EQ(number_at(*data, 5), 5);
    EXPECT_THAT(server.requests(), ElementsAre("train-1.tar 0"));
    EXPECT_EQ(data->label(6), 0);
    EXPECT_EQ(test::read_file(home_.data() / "pets" / "train-1.tar"), shards[1]);
  }
  EXPECT_EQ(number_at(*home_.open(), 7), 7);  // From the cache.
  EXPECT_THAT(server.requests(), ElementsAre("train-1.tar 0"));
  EXPECT_THAT(DatasetSource(home_.name()).fetch({.show_progress = false}).fetched,
              ElementsAre("train-0.tar"));
  EXPECT_THAT(DatasetSource(home_.name()).fetch({.show_progress = false}).fetched, IsEmpty());
  test::expect_verified(home_.name());

  test::fs::remove_all(home_.data());
  home_.describe(R"({"train": [)" + listed(0, shards[1]) + "]}",
                 R"("urls": [")" + server.url() + "\"]");
  EXPECT_THAT(failure_of([&] { home_.open()->label(0); }),
              AllOf(HasSubstr("cannot fetch train-0.tar"), HasSubstr("SHA-256 is")));
  EXPECT_TRUE(test::fs::is_empty(home_.data() / "pets"));
}

TEST_F(Shards, WithoutACountTheyAreFetchedWhenDataAreOpened) {
  const test::TempDir mirror;
  write_file(mirror / "train-0.tar", test::tar_bytes(samples(0, 4)));
  write_file(mirror / "names.txt", std::string("cat\ndog\n"));
  home_.describe(kOneShard,
                 R"("urls": ["file:///nowhere", "file://)" + mirror.path().string() + "\"]");
  EXPECT_EQ(home_.open()->size(), 4);
  EXPECT_TRUE(test::fs::exists(home_.data() / "pets" / "train-0.tar"));
  write_file(mirror / "train-1.tar", std::string("<html>log in first</html>"));
  home_.describe(kTwoShards, R"("urls": ["file://)" + mirror.path().string() + "\"]");
  EXPECT_THAT(failure_to_open(),
              AllOf(HasSubstr("cannot fetch train-1.tar"), Not(HasSubstr("train-0"))));
  EXPECT_FALSE(test::fs::exists(home_.data() / "pets" / "train-1.tar"));
}

TEST_F(Shards, AFetchSetsAsideWhatIsNotTheDescribedOne) {
  const test::TempDir mirror;
  const Bytes shard = test::tar_bytes(samples(0, 4));
  write_file(mirror / "train-0.tar", shard);
  write_file(home_.data() / "pets/train-0.tar", std::string("precious"));
  home_.describe(
      R"({"train": [{"name": "train-0.tar", "size": )" + std::to_string(shard.size()) + "}]}",
      R"("urls": ["file://)" + mirror.path().string() + "\"]");
  const std::string said =
      said_by([&] { DatasetSource(home_.name()).fetch({.show_progress = false}); });
  EXPECT_THAT(said, HasSubstr("and is kept as train-0.tar.old"));
  EXPECT_EQ(test::get(home_.data() / "pets/train-0.tar.old"), "precious");
  EXPECT_EQ(test::read_file(home_.data() / "pets/train-0.tar"), shard);
}

TEST_F(Shards, OneThatIsMissingIsNamedEverywhere) {
  for (const char* name : {"train-0.tar", "test-0.tar"}) home_.write(name, samples(0, 4));
  home_.describe(R"({"train": [{"name": "train-{0..1}.tar"}], "test": [{"name": "test-0.tar"}]},
                     "num_images": {"train": 12})");
  const auto missing = HasSubstr("file 'train-1.tar' not found in ");
  const std::string error = failure_of([&] { home_.open(); });
  EXPECT_THAT(error, AllOf(missing, HasSubstr("; splits that are here: test")));
  const std::string said = said_by([&] {
    EXPECT_THAT(DatasetSource(home_.name()).verify().front().problem, missing);
    EXPECT_EQ(PlannedDatasets()(home_.name(), "train")->size(), 12);
  });
  EXPECT_THAT(said, HasSubstr("file 'train-1.tar' is not here; the plan uses the description"));
}

}  // namespace
}  // namespace moesaic
