// SPDX-License-Identifier: Apache-2.0
// Datasets of format "table": what is read from CSV and safetensors files, and what is refused.
#include <fmt/format.h>
#include <torch/torch.h>

#include <limits>
#include <set>

#include "data/data_fixture.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/config/document.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

const std::map<std::string, std::string> kNoMetadata;

class TableFiles : public ::testing::Test {
 protected:
  /// Writes a description of `table` beside the files and returns its path.
  std::string describe(const std::string& table, const std::string& more = "") const {
    write_atomic(folder_ / "rows.json",
                 fmt::format(R"({{"name": "rows", "format": "table", "paths": ["{}"], {}
                                 "table": {}}})",
                             folder_.path().string(), more, table));
    return (folder_ / "rows.json").string();
  }
  std::shared_ptr<const Dataset> open(const std::string& table, const char* split = "train",
                                      const std::string& more = "") const {
    return open_dataset(describe(table, more), split);
  }
  std::string refused(const std::string& table, const std::string& more = "") const {
    try {
      open(table, "train", more);
    } catch (const Error& error) {
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }
  void put(const std::string& name, const std::string& text) const {
    write_atomic(folder_ / name, text);
  }

  test::TempDir folder_;
};

const std::string kBoth = R"("train": "a.csv", "test": "b.csv")";

TEST_F(TableFiles, GiveColumnsByName) {
  put("a.csv", "x1,y,x2\n1,10,-2\n3,30,-4\n");
  put("b.csv", "x2,x1,y\n6,5,50\n");
  const std::string table = "{" + kBoth + R"(, "inputs": ["x1", "x2"], "targets": ["y"]})";
  const auto train = open(table);
  EXPECT_EQ(train->info().targets, std::vector<std::string>{"y"});
  EXPECT_FALSE(train->has_images());
  EXPECT_EQ(example_noun(train->info()), "row");
  EXPECT_FALSE(train->is_endless());
  const DatasetInputs rows = train->inputs();
  EXPECT_TRUE(torch::equal(rows.values_NCHW,
                           torch::tensor({{1.0F, -2.0F}, {3.0F, -4.0F}}).reshape({2, 1, 1, 2})));
  EXPECT_TRUE(torch::equal(rows.targets_NK, torch::tensor({{10.0F}, {30.0F}})));
  EXPECT_TRUE(torch::equal(open(table, "test")->inputs().values_NCHW.flatten(),
                           torch::tensor({5.0F, 6.0F})));
  // All but the target, in the file's order.
  const auto others = open("{" + kBoth + R"(, "targets": ["x1"]})");
  EXPECT_TRUE(torch::equal(others->inputs().values_NCHW.flatten(),
                           torch::tensor({10.0F, -2.0F, 30.0F, -4.0F})));
}

TEST_F(TableFiles, WithoutAHeaderNumberTheirColumns) {
  put("a.csv", "1,2,3\n4,5,6\n");
  put("b.csv", "7,8,9\n");
  const auto data = open("{" + kBoth + R"(, "has_header": false, "targets": ["3", "1"]})");
  EXPECT_TRUE(torch::equal(data->inputs().targets_NK, torch::tensor({{3.0F, 1.0F}, {6.0F, 4.0F}})));
  EXPECT_TRUE(torch::equal(data->inputs().values_NCHW.flatten(), torch::tensor({2.0F, 5.0F})));
}

TEST_F(TableFiles, NameClasses) {
  put("a.csv", "x,kind\n1,\"cat, big\"\n2,dog\n3,dog\n");
  put("b.csv", "x,kind\n1,dog\n");
  const std::string table = "{" + kBoth + R"(, "label": "kind"})";
  const std::string classes = R"("classes": ["dog", "cat, big"],)";
  const auto data = open(table, "train", classes);
  EXPECT_EQ(data->info().classes.size(), 2U);
  EXPECT_TRUE(data->info().targets.empty());
  EXPECT_EQ(data->label(0), 1);
  EXPECT_EQ(data->label(1), 0);
  put("a.csv", "x,kind\n1,cat\n");
  EXPECT_THAT(refused(table, classes), HasSubstr("a.csv:2:3: there is no class 'cat'; "));
  EXPECT_THAT(refused(table), HasSubstr("'label' of a table and 'classes' go together"));
}

TEST_F(TableFiles, MayBeTensors) {
  const at::Tensor x = torch::arange(12, torch::kDouble).reshape({4, 3});
  const at::Tensor y = torch::arange(8, torch::kInt).reshape({4, 2});
  const at::Tensor kind = torch::tensor({0, 1, 1, 0});
  write_tensors(folder_ / "a.safetensors", {{"x", x}, {"y", y}, {"z", x.select(1, 0).contiguous()}},
                kNoMetadata);
  write_tensors(folder_ / "b.safetensors", {{"x", x}, {"kind", kind}}, kNoMetadata);
  const auto real = open(R"({"train": "a.safetensors", "test": "b.safetensors",
                             "inputs": ["z", "x"], "targets": ["y"]})");
  EXPECT_EQ(real->info().targets, (std::vector<std::string>{"y 1", "y 2"}));
  EXPECT_TRUE(torch::equal(real->inputs().targets_NK, y.to(torch::kFloat)));
  EXPECT_TRUE(torch::equal(real->inputs().values_NCHW.flatten(1),
                           torch::cat({x.select(1, 0).unsqueeze(1), x}, 1).to(torch::kFloat)));
  const auto labelled = open(R"({"train": "a.safetensors", "test": "b.safetensors",
                                 "label": "kind"})",
                             "test", R"("classes": ["a", "b"],)");
  EXPECT_EQ(labelled->label(1), 1);
  EXPECT_EQ(labelled->image_size(), 3);

  const auto refusal = [&](const TensorMap& tensors) {
    write_tensors(folder_ / "a.safetensors", tensors, kNoMetadata);
    return refused(R"({"file": "a.safetensors", "targets": ["y"]})");
  };
  EXPECT_THAT(refusal({{"x", x}}), HasSubstr("a.safetensors: there is no 'y'; "));
  EXPECT_THAT(refusal({{"x", x}, {"y", y.slice(0, 1)}}),
              HasSubstr("there are 4 rows of inputs and 3 of targets"));
  EXPECT_THAT(refusal({{"x", x}, {"u", x.slice(0, 2)}, {"y", y}}), HasSubstr("has 4 rows"));
  EXPECT_THAT(refusal({{"y", y}}), HasSubstr("no column is left for the inputs"));
  EXPECT_THAT(refusal({{"x", x.unsqueeze(0)}, {"y", y}}),
              HasSubstr("must have two dimensions, found shape [1, 4, 3]"));
  // Finite in float64 only.
  EXPECT_THAT(refusal({{"x", x * 1e300}, {"y", y}}), HasSubstr("not finite in row 0"));
}

TEST_F(TableFiles, OneFileIsSplitByTheSeed) {
  std::string text = "x,y\n";
  for (int i = 0; i < 40; ++i) text += fmt::format("{},{}\n", i, -i);
  put("all.csv", text);
  const auto table = [](const char* more) {
    return fmt::format(R"({{"file": "all.csv", "targets": ["y"], "test_fraction": {}}})", more);
  };
  std::set<float> seen;
  for (const char* split : {"train", "test"}) {
    const DatasetInputs rows = open(table("0.25"), split)->inputs();
    EXPECT_EQ(rows.targets_NK.size(0), std::string(split) == "test" ? 10 : 30);
    EXPECT_TRUE(torch::equal(rows.values_NCHW.flatten(), -rows.targets_NK.flatten()));
    const at::Tensor x = rows.values_NCHW.flatten();
    for (int64_t i = 0; i < x.size(0); ++i) EXPECT_TRUE(seen.insert(x[i].item<float>()).second);
  }
  EXPECT_EQ(seen.size(), 40U);
  EXPECT_FALSE(torch::equal(open(table("0.25, \"seed\": 2"))->inputs().targets_NK,
                            open(table("0.25"))->inputs().targets_NK));
  EXPECT_THAT(refused(table("0.001")), HasSubstr("test_fraction 0.001 of 40 rows leaves no row"));
  EXPECT_EQ(open(table("0.25"), "validation", R"("validation": 0.2,)")->size(), 6);
  test::expect_verified(describe(table("0.25")));
}

TEST_F(TableFiles, AreRefusedWithTheirPlace) {
  const std::string table = R"({"file": "a.csv", "targets": ["y"]})";
  const auto refusal = [&](const std::string& text) {
    put("a.csv", text);
    return refused(table);
  };
  EXPECT_THAT(refusal("x,y\n1,2\n3,nan\n"), HasSubstr("a.csv:3:3: expected a finite number"));
  EXPECT_THAT(refusal("x,y\n1,2\n3\n"), HasSubstr("a.csv:3:1: the row has 1 field"));
  EXPECT_THAT(refusal("x,z\n1,2\n"), HasSubstr("a.csv: there is no 'y'; "));
  EXPECT_THAT(refusal("y,y\n1,2\n"), HasSubstr("a.csv: two columns are called 'y'"));
  EXPECT_THAT(refusal("y\n1\n"), HasSubstr("a.csv: no column is left for the inputs"));
  EXPECT_THAT(refusal(""), HasSubstr("a.csv: the file is empty"));
  EXPECT_THAT(refusal("x,y\n"), HasSubstr("a.csv: there are no rows but the header"));
  EXPECT_THAT(refusal("x;y\n1;2\n"),
              EndsWith("a.csv: columns are separated by ';'; separate them by commas"));
  put("a.csv", "x,y\n1,2\n3,4\n");
  EXPECT_THAT(refused(R"({"file": "a.csv", "targets": ["y"], "width": 2})"),
              HasSubstr("a.csv: a row has 1 input, the description says 2"));
  put("a.csv", "x,y\n1,one\n");
  const auto found = DatasetSource(describe(table)).verify();
  ASSERT_FALSE(found.empty());
  EXPECT_THAT(found[0].problem, HasSubstr("a.csv:2:3: expected a finite number"));
}

TEST_F(TableFiles, ArePlannedByTheirDescription) {
  const std::string name = describe(R"({"file": "none.csv", "targets": ["y"], "width": 3})",
                                    R"("num_images": {"train": 40, "test": 10},)");
  const auto planned = PlannedDatasets()(name, "train");
  EXPECT_EQ(planned->size(), 40);
  EXPECT_EQ(planned->info().targets, std::vector<std::string>{"y"});
  EXPECT_EQ(planned->image_size(), 3);
}

TEST_F(TableFiles, NeedWhatGoesTogether) {
  EXPECT_THAT(refused(R"({"file": "a.csv"})"),
              AllOf(HasSubstr("either 'targets' or 'label'"), HasSubstr(R"("classes": [)")));
  EXPECT_THAT(refused(R"({"file": "a.csv", "targets": ["y"], "label": "z"})"),
              HasSubstr("either 'targets' or 'label'"));
  EXPECT_THAT(refused(R"({"file": "a.csv", "targets": ["y"], "inputs": ["x", "y"]})"),
              HasSubstr("'y' is named twice"));
  EXPECT_THAT(refused(R"({"train": "a.csv", "targets": ["y"]})"), HasSubstr("either 'file', or"));
  EXPECT_THAT(refused(R"({"file": "a/b.csv", "targets": ["y"]})"), HasSubstr("'file', 'train'"));
  EXPECT_THAT(refused("null"), HasSubstr("format table needs 'table'"));
  EXPECT_THAT(refused(R"({"file": "a.csv", "targets": ["y"]})", R"("mean": [0], "std": [1],)"),
              HasSubstr("format table has no files, mean or std"));
}

}  // namespace
}  // namespace moesaic
