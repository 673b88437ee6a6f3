// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include "base/support.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/export/predict.h"
#include "support/matchers.h"
#include "support/models.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using train_test::kModel;
using train_test::quarters;
using train_test::TempDir;

/// Evaluates a network of three classes, with its features in a file.
Evaluation evaluate_to(const fs::path& file, Model& model, const Dataset& data_of_labels) {
  FeatureFile features(file);
  EvaluateOptions options{.batch_size = 4};
  options.on_batch = [&](const EvaluatedBatch& batch) {
    EXPECT_FALSE(fs::exists(file));
    features.add(batch);
  };
  const auto data = quarters("three", "test", 3, data_of_labels.size());
  const Evaluation found = evaluate(model, data, options);
  features.finish(found.predictions);
  return found;
}

TEST(FeatureFile, HasWhatTheForwardPassGivesForEachImage) {
  for (const int64_t members : {1, 2}) {
    Document config = Document::from_text(kModel, "model");
    if (members > 1) {
      config.set("name=e3");
      config.set("encoder.moe.ensemble_size=2");
    }
    const auto model = build_model(config.root(), 9);
    const auto data = quarters("three", "test", 3, 11);
    const TempDir folder;
    const Evaluation found = evaluate_to(folder / "f.safetensors", *model, *data);
    EXPECT_THAT(folder.names(), ElementsAre("f.safetensors"));
    const TensorMap tensors = read_tensors(folder / "f.safetensors");
    ASSERT_EQ(tensors.size(), 3U);
    EXPECT_TRUE(tensors.at("predictions").equal(found.predictions.predicted_N));
    const torch::NoGradGuard no_grad;
    model->eval();
    const Batch batch = Loader(data, {.batch_size = 11}).next();
    EXPECT_TRUE(tensors.at("labels").equal(batch.labels));
    const at::Tensor wanted = model->forward(batch.inputs).pre_logits;
    ASSERT_EQ(tensors.at("pre_logits").sizes(), at::IntArrayRef({11 * members, 8}));
    EXPECT_TRUE(torch::allclose(tensors.at("pre_logits"), wanted, 1e-4, 1e-5));
  }
}

TEST(FeatureFile, LeavesNothingWhereTheDiskIsFull) {
  const auto model = testing::model_from(kModel, 9);
  const auto data = quarters("three", "test", 3, 400);
  const TempDir folder;
  {
    const test::FileSizeLimit full(2048);
    EXPECT_THAT(test::failure_of([&] { evaluate_to(folder / "f.safetensors", *model, *data); }),
                HasSubstr("f.safetensors"));
  }
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(FeatureFile, NeedsClasses) {
  const TempDir folder;
  FeatureFile features(folder / "f.safetensors");
  const auto data = quarters("three", "test", 3, 3);
  const auto model = testing::model_from(kModel, 9);
  const at::Tensor none, images = torch::zeros({1, 1, 4, 4});
  const ModelOutput output;
  EXPECT_THAT(test::usage_of([&] {
                features.add({*data, 0, images, none, none, none, output, *model});
              }),
              HasSubstr("the targets of 'three' are real numbers"));
}

}  // namespace
}  // namespace moesaic
