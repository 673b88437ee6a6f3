// SPDX-License-Identifier: Apache-2.0
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

namespace fs = std::filesystem;
using Metadata = std::map<std::string, std::string>;

const Metadata kNames = {{"classes", R"(["bad", "good"])"}, {"languages", R"(["en", "fr", "ru"])"}};

/// Row i is i, i + 0.5, ...; labels alternate, languages go round.
TensorMap texts(int64_t count, int64_t width = 4) {
  const at::Tensor row = torch::arange(count, torch::kFloat);
  return {{"embeddings", row.unsqueeze(1) + 0.5 * torch::arange(width, torch::kFloat)},
          {"label", torch::arange(count) % 2},
          {"language", torch::arange(count) % 3}};
}

class EmbeddingsFiles : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, const TensorMap& tensors,
                 const Metadata& metadata = kNames) const {
    write_tensors(folder_ / name, tensors, metadata);
    return folder_ / name;
  }

  /// The one line about a file that differs from a good one in a tensor; without the file's name.
  std::string refused(const std::string& name, const at::Tensor& tensor) const {
    TensorMap tensors = texts(6);
    tensors[name] = tensor;
    return problem_of(write("bad.safetensors", tensors));
  }
  std::string refused(const Metadata& metadata) const {
    return problem_of(write("bad.safetensors", texts(6), metadata));
  }
  std::string problem_of(const fs::path& file) const {
    const std::string name = describe_as_train(file);
    const std::string message = test::failure_of([&] { open_dataset(name, "train"); });
    EXPECT_THAT(message, StartsWith(file.string() + ": "));
    EXPECT_EQ(message.find('\n'), message.npos);
    return message.substr(std::min(message.size(), file.string().size() + 2));
  }

  /// A description beside the files.
  std::string describe(const std::string& embeddings) const {
    write_atomic(folder_ / "texts.json",
                 fmt::format(R"({{"name": "texts", "format": "embeddings", "paths": ["{}"],
                                 "embeddings": {}}})",
                             folder_.path().string(), embeddings));
    return (folder_ / "texts.json").string();
  }
  /// A description whose training file is this one.
  std::string describe_as_train(const fs::path& file) const {
    return describe(
        fmt::format(R"({{"train": "{}", "test": "none.safetensors"}})", file.filename().string()));
  }

  test::TempDir folder_;
};

TEST_F(EmbeddingsFiles, AreReadInEachDtypeTheyMayHave) {
  for (const auto real : {torch::kFloat, torch::kHalf, torch::kBFloat16}) {
    for (const auto whole : {torch::kLong, torch::kInt, torch::kByte}) {
      TensorMap tensors = texts(7);
      tensors["embeddings"] = tensors["embeddings"].to(real);
      tensors["label"] = tensors["label"].to(whole);
      tensors["language"] = tensors["language"].to(whole);
      const auto data = open_dataset(describe_as_train(write("a.safetensors", tensors)), "train");
      const DatasetInputs read = data->inputs();
      EXPECT_TRUE(torch::equal(read.values_NCHW.squeeze(1).squeeze(1), texts(7)["embeddings"]));
      EXPECT_TRUE(torch::equal(read.labels_N, texts(7)["label"]));
      EXPECT_TRUE(torch::equal(read.groups_N, texts(7)["language"]));
      EXPECT_EQ(data->info().classes, (std::vector<std::string>{"bad", "good"}));
      EXPECT_EQ(data->info().groups, (std::vector<std::string>{"en", "fr", "ru"}));
    }
  }
}

TEST_F(EmbeddingsFiles, WithWhatDoesNotFitAreRefusedInOneLine) {
  const at::Tensor x = texts(6)["embeddings"], label = texts(6)["label"];
  EXPECT_EQ(refused("embeddings", x.flatten()),
            "tensor 'embeddings' must have two dimensions, found shape [24]");
  EXPECT_EQ(refused("embeddings", x.to(torch::kDouble)),
            "tensor 'embeddings' must be one of BF16, F16, F32, found F64");
  EXPECT_EQ(refused("embeddings", torch::zeros({6, 0})), "tensor 'embeddings' is empty: [6, 0]");
  for (const double number :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    at::Tensor damaged = x.clone();
    damaged[4][1] = number;
    EXPECT_EQ(refused("embeddings", damaged),
              "tensor 'embeddings' holds a number that is not finite in row 4");
  }
  EXPECT_EQ(refused("label", label.slice(0, 1)), "tensor 'label' has 5 numbers for 6 embeddings");
  EXPECT_EQ(refused("label", label.unsqueeze(1)),
            "tensor 'label' must have one dimension, found shape [6, 1]");
  EXPECT_EQ(refused("label", label.to(torch::kFloat)),
            "tensor 'label' must be one of I16, I32, I64, I8, U8, found F32");
  EXPECT_EQ(refused("label", label + 1),
            "tensor 'label' must be between 0 and 1, found 2 in row 1");
  EXPECT_EQ(refused("language", label - 1),
            "tensor 'language' must be between 0 and 2, found -1 in row 0");
  for (const char* name : {"embeddings", "label", "language"}) {
    TensorMap tensors = texts(6);
    tensors.erase(name);
    EXPECT_EQ(problem_of(write("bad.safetensors", tensors)),
              fmt::format("tensor '{}' is missing", name));
  }
  write_atomic(folder_ / "bad.safetensors", "nothing of the kind");
  problem_of(folder_ / "bad.safetensors");
}

TEST_F(EmbeddingsFiles, NeedNamesInTheirMetadata) {
  EXPECT_EQ(refused({{"classes", R"(["a", "b"])"}}), "its metadata has no 'languages'");
  for (const char* names : {"a, b", "[]", R"(["a", "a"])", R"(["a", 2])", R"(["a", ""])", "{}"}) {
    Metadata metadata = kNames;
    metadata["classes"] = names;
    EXPECT_EQ(refused(metadata),
              "'classes' of its metadata must be a JSON list of different names, e.g. [\"a\", "
              "\"b\"]")
        << names;
  }
}

TEST_F(EmbeddingsFiles, OneFileIsSplitByTheSeed) {
  write("all.safetensors", texts(50));
  const std::string name = describe(R"({"file": "all.safetensors", "test_fraction": 0.3})");
  std::set<float> rows;
  for (const char* split : {"train", "test"}) {
    const auto data = open_dataset(name, split);
    EXPECT_EQ(data->size(), std::string(split) == "test" ? 15 : 35);
    EXPECT_EQ(data->info().classes, (std::vector<std::string>{"bad", "good"}));
    EXPECT_EQ(data->info().groups, (std::vector<std::string>{"en", "fr", "ru"}));
    const DatasetInputs inputs = data->inputs();
    EXPECT_EQ(inputs.values_NCHW.sizes(), (std::vector<int64_t>{data->size(), 1, 1, 4}));
    for (int64_t i = 0; i < data->size(); ++i) {
      const auto row = inputs.values_NCHW[i][0][0][0].item<float>();
      EXPECT_TRUE(rows.insert(row).second);
      EXPECT_EQ(data->label(i), static_cast<int64_t>(row) % 2);
      EXPECT_EQ(inputs.groups_N[i].item<int64_t>(), static_cast<int64_t>(row) % 3);
    }
  }
  const at::Tensor values = open_dataset(name, "test")->inputs().values_NCHW;
  EXPECT_TRUE(torch::equal(values, open_dataset(name, "test")->inputs().values_NCHW));
  describe(R"({"file": "all.safetensors", "test_fraction": 0.3, "seed": 2})");
  EXPECT_FALSE(torch::equal(values, open_dataset(name, "test")->inputs().values_NCHW));
  describe(R"({"file": "all.safetensors", "test_fraction": 0.001})");
  EXPECT_THAT(test::failure_of([&] { open_dataset(name, "test"); }),
              HasSubstr("test_fraction 0.001 of 50 texts leaves no text to test with"));
}

TEST_F(EmbeddingsFiles, TwoFilesHaveToNameTheSame) {
  write("a.safetensors", texts(9));
  write("b.safetensors", texts(6));
  const std::string name = describe(R"({"train": "a.safetensors", "test": "b.safetensors"})");
  EXPECT_EQ(open_dataset(name, "train")->size(), 9);
  EXPECT_EQ(open_dataset(name, "test")->size(), 6);
  test::expect_verified(name);
  Metadata swapped = kNames;
  swapped["classes"] = R"(["good", "bad"])";
  write("b.safetensors", texts(6), swapped);
  for (const char* split : {"train", "test"}) {
    EXPECT_THAT(test::failure_of([&] { open_dataset(name, split); }),
                HasSubstr("different 'classes'"));
  }
  fs::remove(folder_ / "b.safetensors");
  EXPECT_EQ(open_dataset(name, "train")->size(), 9);
  const std::string missing = test::failure_of([&] { open_dataset(name, "test"); });
  EXPECT_THAT(missing, HasSubstr("file 'b.safetensors' not found in"));
}

TEST_F(EmbeddingsFiles, AreHeldToTheirDescriptionWhichIsEnoughForAPlan) {
  const auto described = [&](int64_t width, int64_t classes) {
    write_atomic(folder_ / "texts.json",
                 fmt::format(R"({{"name": "texts", "format": "embeddings", "paths": ["{}"],
                     "num_classes": {}, "num_images": {{"train": 40, "test": 10}},
                     "embeddings": {{"file": "all.safetensors", "width": {}}}}})",
                             folder_.path().string(), classes, width));
    return (folder_ / "texts.json").string();
  };
  const auto planned = PlannedDatasets()(described(4, 2), "train");
  EXPECT_EQ(planned->size(), 40);
  EXPECT_EQ(planned->info().classes.size(), 2U);
  EXPECT_EQ(planned->info().width, 4);
  EXPECT_EQ(planned->info().height * planned->info().channels, 1);
  EXPECT_EQ(planned->info().std, (std::vector<double>{1.0}));
  write("all.safetensors", texts(20));
  EXPECT_EQ(PlannedDatasets()(described(4, 2), "train")->size(), 16);
  EXPECT_THAT(
      test::failure_of([&] { open_dataset(described(5, 2), "test"); }),
      HasSubstr("all.safetensors: tensor 'embeddings' has rows of 4, the description says 5"));
  EXPECT_THAT(test::failure_of([&] { open_dataset(described(4, 3), "test"); }),
              HasSubstr("2 classes in its metadata, dataset 'texts' has 3"));
}

TEST(EmbeddingsConfig, IsOneFileOrTwo) {
  const auto problem = [](const std::string& embeddings) {
    try {
      parse<DatasetSpec>(Document::from_text(R"({"name": "x", "format": "embeddings")" +
                                                 (embeddings.empty() ? "" : ", " + embeddings) +
                                                 "}",
                                             "x.json")
                             .root());
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(problem(R"("embeddings": {"file": "a.safetensors"})"), "");
  EXPECT_EQ(problem(R"("embeddings": {"train": "a.safetensors", "test": "b.safetensors"})"), "");
  for (const char* wrong :
       {"{}", R"({"train": "a"})", R"({"file": "a", "train": "b", "test": "c"})"}) {
    EXPECT_THAT(problem(R"("embeddings": )" + std::string(wrong)),
                HasSubstr("either 'file', or both 'train'"))
        << wrong;
  }
  EXPECT_THAT(problem(R"("embeddings": {"file": "../a"})"), HasSubstr("without folders"));
  EXPECT_THAT(problem(""), HasSubstr("needs 'embeddings'"));
  EXPECT_THAT(problem(R"("embeddings": {"file": "a"}, "classes": ["a"])"),
              HasSubstr("has no files, mean"));
}

}  // namespace
}  // namespace moesaic
