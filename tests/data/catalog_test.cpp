// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/source.h"

#include <algorithm>

#include "data/data_fixture.h"
#include "moesaic/data/dataset.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::gzip_bytes;
using test::usage_of;

class Catalog : public ::testing::Test {
 protected:
  /// Writes a description of the dataset "bad" and returns what is said about it.
  std::string complaint(const std::string& text) {
    home_.write_description("bad", text);
    const std::string message = usage_of([] { open_dataset("bad", "train"); });
    EXPECT_THAT(message, HasSubstr("bad.json"));
    return message;
  }

  test::TinyHome home_;
};

TEST_F(Catalog, FoldersAreSearchedInOrder) {
  const test::TempDir data;
  const std::filesystem::path elsewhere = std::filesystem::path(home_.root()) / "elsewhere";
  home_.write_files(elsewhere);
  EXPECT_EQ(load_dataset_spec("tiny").find_folder(), elsewhere);
  home_.write_files(home_.cache());
  EXPECT_EQ(load_dataset_spec("tiny").find_folder(), home_.cache());
  const test::ScopedEnv env("MOESAIC_DATA", data.path().string());
  EXPECT_EQ(load_dataset_spec("tiny").find_folder(), home_.cache());
  EXPECT_EQ(load_dataset_spec("tiny").fetch_folder(), data.path() / "tiny");
  home_.write_files(data.path() / "tiny");
  EXPECT_EQ(load_dataset_spec("tiny").find_folder(), data.path() / "tiny");
}

TEST_F(Catalog, PathsAreRelativeToTheDescription) {
  const test::TempDir folder;
  test::fs::create_directories(folder / "sub/data/pets");
  write_file(folder / "sub/mine.json", std::string(R"({"name": "mine", "format": "image_folder",
                                                       "paths": ["data/pets", "./other"]})"));
  const std::vector<test::fs::path> searched =
      load_dataset_spec((folder / "sub/mine.json").string()).search_folders();
  EXPECT_EQ(searched.front(), folder / "sub/other");
  EXPECT_NE(std::find(searched.begin(), searched.end(), folder / "sub/data/pets"), searched.end());
  const test::fs::path before = test::fs::current_path();
  test::fs::current_path(folder / "sub");
  EXPECT_EQ(load_dataset_spec("mine.json").spec_folder, (folder / "sub").string());
  EXPECT_EQ(name_without_folders("./"), "sub");
  test::fs::current_path(before);
}

TEST_F(Catalog, DescriptionsAreParsedStrictly) {
  EXPECT_THAT(
      complaint("{\"name\": \"bad\",\n  \"keep_clases\": []}"),
      AllOf(HasSubstr("bad.json:2:3"), HasSubstr("keep_clases"), HasSubstr("keep_classes")));
  EXPECT_THAT(complaint("{\"name\": \"bad\", "), HasSubstr("bad.json:1:"));
  EXPECT_THAT(complaint(R"({"name": "good", "base": "tiny", "keep_classes": ["dog"]})"),
              HasSubstr("name is 'good', so the file must be called good.json; or set name to "));
  EXPECT_THAT(
      complaint(R"({"name": "bad", "format": "image_folder", "classes": ["dog", "cat", "dog"]})"),
      HasSubstr("classes names 'dog' twice"));
  const std::string one_of =
      "needs exactly one of keep_classes, num_first_images, rotate, mosaic and backdrop";
  EXPECT_THAT(complaint(R"({"name": "bad", "base": "tiny"})"),
              AllOf(HasSubstr(one_of), HasSubstr("; found none of these")));
  EXPECT_THAT(
      complaint(
          R"({"name": "bad", "base": "tiny", "rotate": {}, "num_first_images": {"test": 1}})"),
      AllOf(HasSubstr(one_of), HasSubstr("; found num_first_images and rotate")));
  EXPECT_THAT(complaint(R"({"name": "bad", "base": "tiny", "num_first_images": {"tset": 1}})"),
              HasSubstr("unknown key 'tset' in num_first_images; did you mean 'test'?"));
  EXPECT_THAT(complaint(R"({"name": "bad", "base": "tiny", "rotate": {"degrees": 360}})"),
              HasSubstr("degrees"));
  EXPECT_THAT(complaint(R"({"name": "bad", "base": "tiny", "keep_classes": ["dog"],
                            "classes": ["dog"]})"),
              HasSubstr("takes classes"));
  EXPECT_THAT(complaint(R"({"name": "bad"})"), HasSubstr("files.train_images is missing"));
  EXPECT_THAT(complaint(R"({"name": "bad", "format": "idy"})"), HasSubstr("idx"));
  EXPECT_THAT(complaint(R"({"name": "bad", "folder": "../x"})"), HasSubstr("not '../x'"));
  EXPECT_THAT(complaint(R"({"name": "bad", "std": [0]})"), HasSubstr("std"));
}

TEST_F(Catalog, DescribedFilesAreChecked) {
  const auto file_complaint = [&](const std::string& role, const std::string& name,
                                  const std::string& hash) {
    return complaint(R"({"name": "bad", "files": {")" + role + R"(": {"name": ")" + name +
                     R"(", "size": 1, "sha256": ")" + hash + "\"}}}");
  };
  const std::string hash(64, 'a');
  EXPECT_THAT(file_complaint("train_image", "x", hash),
              AllOf(HasSubstr("'train_image'"), HasSubstr("did you mean 'train_images'?")));
  EXPECT_THAT(file_complaint("train_images", "../x", hash), HasSubstr("'../x'"));
  EXPECT_THAT(file_complaint("train_images", "", hash), HasSubstr("file name"));
  EXPECT_THAT(file_complaint("train_images", "x", hash.substr(1)), HasSubstr("64"));
  EXPECT_THAT(file_complaint("train_images", "x", std::string(64, 'A')), HasSubstr("64"));
}

TEST_F(Catalog, TellsWhereFilesAre) {
  home_.write_description("few", R"({"name": "few", "base": "tiny", "description": "d",
                                     "keep_classes": ["hen", "dog"]})");
  EXPECT_EQ(dataset_names(), (std::vector<std::string>{"few", "tiny"}));
  EXPECT_EQ(DatasetSource("few").num_classes(), 2);
  EXPECT_EQ(DatasetSource("tiny").num_classes(), 4);
  EXPECT_EQ(DatasetSource("tiny").spec().description, "a test");
  const auto expect_at = [](const std::string& where) {
    for (const std::string& name : dataset_names()) EXPECT_EQ(DatasetSource(name).where(), where);
  };
  expect_at("not here; place or link it at " + home_.cache().string());
  home_.urls = {"https://example.org/"};
  home_.describe();
  expect_at("not here; moesaic data fetch tiny");
  home_.write_files(home_.cache(), true);
  expect_at(home_.cache().string());
}

TEST_F(Catalog, VerifyFindsWhatIsWrong) {
  home_.write_files(home_.cache(), true);
  for (const FileVerification& file : DatasetSource("tiny").verify()) {
    EXPECT_TRUE(file.ok()) << file.problem;
    EXPECT_EQ(file.path, home_.cache() / (file.name + ".gz"));
  }
  test::Bytes altered = home_.files["test-labels"];
  altered.back() ^= 1;
  write_file(home_.cache() / "test-labels.gz", gzip_bytes(altered));
  test::Bytes shorter = home_.files["test-images"];
  shorter.pop_back();
  write_file(home_.cache() / "test-images.gz", gzip_bytes(shorter));
  test::Bytes longer = home_.files["train-labels"];
  longer.push_back(0);
  write_file(home_.cache() / "train-labels.gz", gzip_bytes(longer));
  std::filesystem::remove(home_.cache() / "train-images.gz");

  const std::vector<FileVerification> files = DatasetSource("tiny").verify();
  ASSERT_EQ(files.size(), 4u);
  EXPECT_EQ(files[0].name, "test-images");
  EXPECT_THAT(files[0].problem, HasSubstr("115 bytes unpacked, expected 116"));
  EXPECT_EQ(files[1].name, "test-labels");
  EXPECT_THAT(files[1].problem,
              AllOf(HasSubstr("test-labels.gz"), HasSubstr(test::hash_of(altered)),
                    HasSubstr("expected " + test::hash_of(home_.files["test-labels"]))));
  EXPECT_EQ(files[2].name, "train-images");
  EXPECT_TRUE(files[2].path.empty());
  EXPECT_THAT(files[2].problem, HasSubstr("no such file"));
  EXPECT_THAT(files[3].problem, HasSubstr("more than 20 bytes"));
}

TEST_F(Catalog, VerifyGoesOnAfterAFileThatCannotBeRead) {
  home_.write_files(home_.cache(), true);
  std::filesystem::remove(home_.cache() / "test-labels.gz");
  // Reading one's own memory at address 0 is an I/O error.
  std::filesystem::create_symlink("/proc/self/mem", home_.cache() / "test-labels.gz");
  const std::vector<FileVerification> files = DatasetSource("tiny").verify();
  ASSERT_EQ(files.size(), 4u);
  EXPECT_THAT(files[1].problem, AllOf(HasSubstr("test-labels.gz"), HasSubstr("Input/output")));
  for (const size_t i : {0, 2, 3}) EXPECT_TRUE(files[i].ok()) << files[i].problem;
}

TEST_F(Catalog, VerifyRefusesWhatTrainingRefuses) {
  home_.write_files(home_.cache(), true);
  const auto problems_of = [&](const std::string& settings) {
    home_.write_description("own", R"({"name": "own", "base": "tiny", )" + settings + "}");
    std::string problems;
    for (const FileVerification& file : DatasetSource("own").verify()) problems += file.problem;
    return problems;
  };
  EXPECT_EQ(problems_of(R"("keep_classes": ["hen", "dog"])"), "");
  EXPECT_THAT(problems_of(R"("keep_classes": ["hen", "dgo"])"), HasSubstr("did you mean 'dog'?"));
  EXPECT_THAT(problems_of(R"("num_first_images": {"train": 1000})"),
              HasSubstr("'num_first_images' is 1000, more than the 12"));
  EXPECT_THAT(problems_of(R"("validation": 0.01)"), HasSubstr("leaves none for 'validation'"));
}

TEST_F(Catalog, AMissingDescriptionIsAnUnknownDataset) {
  EXPECT_THAT(usage_of([] { load_dataset_spec("./nonsense.json"); }),
              HasSubstr("dataset './nonsense.json': no such file; moesaic list datasets"));
}

TEST_F(Catalog, VerifyNeedsFilesAndAName) {
  EXPECT_THAT(failure_of([] { DatasetSource("tiny").verify(); }),
              HasSubstr("moesaic data fetch tiny"));
  EXPECT_THAT(usage_of([] { DatasetSource("tin").verify(); }), HasSubstr("'tiny'"));
}

TEST(DatasetMetadata, HasEverythingButPixels) {
  const auto imagenet = DatasetSource("imagenet").open_metadata("train");
  EXPECT_EQ(imagenet->size(), 1268355) << "99 % of 1281167";
  EXPECT_EQ(imagenet->info().classes.size(), 1000u);
  EXPECT_EQ(DatasetSource("cifar100").open_metadata("test")->info().height, 32);
  test::Bytes pixels(3072);
  EXPECT_THAT(
      failure_of([&] { DatasetSource("cifar10").open_metadata("test")->image(0, pixels.data()); }),
      HasSubstr("has no images"));
  const auto digits = DatasetSource("mnist").open_metadata("test");
  EXPECT_EQ(digits->size(), 10000);
  EXPECT_EQ(digits->info().height, 28);
  EXPECT_EQ(digits->info().width, 28);
  EXPECT_THAT(usage_of([] { DatasetSource("fashion-mnist").open_metadata("train"); }),
              HasSubstr("does not state"));
}

}  // namespace
}  // namespace moesaic
