// SPDX-License-Identifier: Apache-2.0
// A format that this test brings: nothing in src/ knows it.
#include "moesaic/data/format.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <fstream>

#include "data/data_fixture.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/loader.h"
#include "support/matchers.h"
#include "support/warnings.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::usage_of;

/// <split>.txt with a line of numbers for each example: the input, then its targets.
struct TableSettings {
  int64_t width = 1;
  std::vector<std::string> targets = {"y"};
};
template <class Fields>
void describe(Fields& f, TableSettings& c) {
  f("width", c.width, "numbers of an input", at_least(1));
  f("targets", c.targets, "names of the targets");
}
ConfigProblem config_problem(const TableSettings& settings) {
  if (!settings.targets.empty()) return {};
  return {"a table needs a target", {"targets"}};
}

std::shared_ptr<const Dataset> open_table(const DatasetSpec& spec, DatasetInfo info,
                                          const test::fs::path& folder) {
  const auto& settings = spec.format.as<TableSettings>();
  const test::fs::path path = folder / (info.split + ".txt");
  std::ifstream in(path);
  std::vector<float> numbers;
  for (float number = 0; in >> number;) numbers.push_back(number);
  info.targets = settings.targets;
  const auto targets = static_cast<int64_t>(info.targets.size());
  const auto count = static_cast<int64_t>(numbers.size()) / (settings.width + targets);
  if (count == 0 || !in.eof()) fail("{}: not a table of numbers", path.string());
  const at::Tensor rows = at::tensor(numbers).view({count, settings.width + targets});
  const at::Tensor x = rows.narrow(1, 0, settings.width).reshape({count, 1, 1, settings.width});
  const at::Tensor y = rows.narrow(1, settings.width, targets);
  return make_input_dataset(std::move(info), {.values_NCHW = x, .targets_NK = y});
}

DatasetFormat table_format() {
  return {.settings = NamedSettings("toy_table", TableSettings{}),
          .description = "table of a test",
          .has_images = false,
          .check =
              [](const DatasetSpec& spec) {
                return spec.classes.empty() ? ConfigProblem()
                                            : ConfigProblem("a table has no classes", {"classes"});
              },
          .open = open_table,
          .required_paths =
              [](const DatasetSpec&, const std::string& split) {
                return std::vector<RequiredPath>{{split + ".txt", /*is_folder=*/false}};
              }};
}

class ToyFormat : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (dataset_formats().find("toy_table") == nullptr)
      dataset_formats().add("toy_table", table_format());
  }

  ToyFormat() {
    home_.write_description("sums", R"({"name": "sums", "description": "sums and differences",
        "format": "toy_table", "width": 2, "targets": ["sum", "difference"], "validation": 0.25})");
  }
  test::fs::path folder() const { return home_.cache().parent_path() / "sums"; }
  void write_tables() const {
    write_file(folder() / "train.txt", std::string("1 2 3 -1\n5 1 6 4\n2 2 4 0\n9 1 10 8\n"));
    write_file(folder() / "test.txt", std::string("7 1 8 6\n"));
  }

  test::TinyHome home_;
};

TEST_F(ToyFormat, OpensListsAndVerifies) {
  EXPECT_THAT(failure_of([] { open_dataset("sums", "train"); }),
              AllOf(HasSubstr("file 'train.txt' not found"), HasSubstr(folder().string())));
  write_tables();
  EXPECT_THAT(dataset_splits("sums"), ElementsAre("train", "validation", "test"));
  EXPECT_EQ(open_dataset("sums", "train")->size(), 3);
  const auto validation = open_dataset("sums", "validation");
  EXPECT_EQ(validation->size(), 1);
  EXPECT_EQ(validation->info().split, "validation");
  float targets[2];
  validation->targets(0, targets);
  EXPECT_THAT(targets, ElementsAre(10.0F, 8.0F));
  const Batch batch = Loader(open_dataset("sums", "train+validation"), {.batch_size = 4}).next();
  EXPECT_FALSE(batch.labels.defined());
  EXPECT_TRUE(at::equal(batch.targets[1], at::tensor({6.0F, 4.0F})));
  EXPECT_TRUE(at::equal(batch.inputs[1].flatten(), at::tensor({5.0F, 1.0F})));

  EXPECT_EQ(DatasetSource("sums").where(), folder().string());
  test::expect_verified("sums");
  write_file(folder() / "test.txt", std::string("seven\n"));
  const auto files = DatasetSource("sums").verify();
  ASSERT_EQ(files.size(), 2U);
  EXPECT_TRUE(files[0].ok());
  EXPECT_EQ(files[1].name, "test.txt");
  EXPECT_THAT(files[1].problem, HasSubstr("test.txt: not a table of numbers"));
}

TEST_F(ToyFormat, ItsSettingsAreParsedStrictly) {
  const auto complaint = [&](const std::string& settings) {
    home_.write_description("sums",
                            "{\"name\": \"sums\", \"format\": \"toy_table\",\n" + settings + "}");
    return usage_of([] { open_dataset("sums", "train"); });
  };
  EXPECT_THAT(complaint(R"("widht": 2)"),
              AllOf(HasSubstr("sums.json:2:1: "), HasSubstr("did you mean 'width'?")));
  EXPECT_THAT(complaint(R"("width": 0)"), HasSubstr("sums.json:2:10"));
  EXPECT_THAT(complaint(R"("targets": [])"),
              AllOf(HasSubstr("sums.json:2:12"), HasSubstr("a table needs a target")));
  EXPECT_THAT(complaint(R"("classes": ["a"])"), HasSubstr("a table has no classes"));
  EXPECT_THAT(complaint(R"("num_label_bytes": 2)"), HasSubstr("label_bytes"));
}

TEST_F(ToyFormat, ANameIsTakenOnce) {
  EXPECT_THAT(usage_of([] { dataset_formats().add("idx", table_format()); }),
              HasSubstr("dataset format 'idx' is already registered"));
}

TEST(DatasetFormats, CifarReadsTheFormerNameOfTheLabelOffset) {
  const test::TempDir folder;
  const test::fs::path file = folder.path() / "d.json";
  const auto write = [&](const std::string& layout) {
    write_file(file, R"({"name": "d", "format": "cifar", "classes": ["a", "b"], )" + layout +
                         R"(, "mean": [0, 0, 0], "std": [1, 1, 1], "files": {
                             "train_1": {"name": "a", "size": 1},
                             "test_1": {"name": "b", "size": 1}}})");
  };
  const testing::Warnings warnings;
  write(R"("num_label_bytes": 2, "label_at": 1)");
  load_dataset_spec(file.string());
  EXPECT_THAT(warnings.texts(),
              ElementsAre(AllOf(HasSubstr("label_at' is called"), HasSubstr("label_offset'"))));
  write(R"("label_at": 1)");
  EXPECT_THAT(usage_of([&] { load_dataset_spec(file.string()); }),
              HasSubstr("label_offset must be below num_label_bytes"));
}

TEST(DatasetFormats, SettingsOfOneAreUnknownToTheOthers) {
  const test::TempDir folder;
  const auto complaint = [&](const std::string& text) {
    write_file(folder.path() / "d.json", R"({"name": "d", "format": )" + text + "}");
    return usage_of([&] { load_dataset_spec((folder.path() / "d.json").string()); });
  };
  EXPECT_THAT(complaint(R"("idx", "attribute": "Smiling")"), HasSubstr("attribute"));
  EXPECT_THAT(complaint(R"("clusters", "num_classes": 3, "clusters": {})"),
              HasSubstr("num_classes"));
  EXPECT_THAT(complaint(R"("image_folder", "files": {"a": {"name": "a", "size": 1}},
                           "mean": [0, 0, 0], "std": [1, 1, 1])"),
              HasSubstr("image_folder has no described files"));
  EXPECT_THAT(complaint(R"("clusters")"), HasSubstr("needs 'clusters'"));
  EXPECT_THAT(complaint(R"("clusters", "clusters": {"endless": true}, "validation": 0.1)"),
              HasSubstr("no validation split"));
  EXPECT_THAT(complaint(R"("image_folder", "mean": [0, 0, 0], "std": [1, 1, 1],
                           "splits": {"validation": "dev"}, "validation": 0.1)"),
              HasSubstr("there is a validation split already"));
}

}  // namespace
}  // namespace moesaic
