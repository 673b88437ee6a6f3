// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/evaluate.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "moesaic/data/derived.h"
#include "moesaic/data/views.h"
#include "moesaic/models/registry.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/mlp_experts.h"
#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

at::Tensor all_images(const std::shared_ptr<const Dataset>& data) {
  return Loader(data, {.batch_size = data->size()}).next().inputs;
}

TEST(Evaluate, CountsWhatThePlainForwardPassSays) {
  const auto model = tiny_model();
  const auto data = quarters("three", "test", 3, 10);
  const Evaluation found = evaluate(*model, data, {.batch_size = 4});
  const torch::NoGradGuard no_grad;
  const ModelOutput output = model->forward(all_images(data));
  int64_t correct = 0;
  double loss = 0;
  int64_t counts[3][3] = {};
  for (int64_t i = 0; i < 10; ++i) {
    const at::Tensor logits = output.logits[i].to(torch::kDouble);
    ++counts[data->label(i)][logits.argmax().item<int64_t>()];
    correct += logits.argmax().item<int64_t>() == data->label(i);
    loss += (logits.exp().sum().log() - logits[data->label(i)]).item<double>();
  }
  EXPECT_EQ(found.num_images, 10);
  EXPECT_DOUBLE_EQ(found.metric("accuracy"), 10.0 * static_cast<double>(correct));
  for (int64_t label = 0; label < 3; ++label) {
    EXPECT_EQ(found.confusion.num_images(label), label == 0 ? 4 : 3);
    for (int64_t predicted = 0; predicted < 3; ++predicted) {
      EXPECT_EQ(found.confusion.count(label, predicted), counts[label][predicted]);
    }
  }
  EXPECT_NEAR(found.metric("loss"), loss / 10, 1e-5);
  EXPECT_GT(found.images_per_second, 0.0);
}

TEST(Evaluate, ReportsHowExpertsAreUsed) {
  const auto model = tiny_model();
  const auto data = quarters("three", "test", 3, 10);
  const Evaluation all = evaluate(*model, data);
  ASSERT_EQ(all.routing.size(), 1u);
  EXPECT_EQ(all.routing[0].block, 1);
  EXPECT_EQ(all.routing[0].num_experts, 4);
  EXPECT_DOUBLE_EQ(all.routing[0].rows_per_token, 2.0);

  model->moe_blocks()[0].layer->keep_experts({1, 3});
  const Evaluation pruned = evaluate(*model, data);
  const LayerRouting& layer = pruned.routing[0];
  EXPECT_EQ(layer.kept, (std::vector<int64_t>{1, 3}));
  ASSERT_EQ(layer.load.size(), 2u);
  EXPECT_DOUBLE_EQ(layer.rows_per_token, 2.0 * (all.routing[0].load[1] + all.routing[0].load[3]));
  EXPECT_LT(layer.rows_per_token, 2.0);
  EXPECT_NEAR(layer.load[0] + layer.load[1], 1.0, 1e-12);
  EXPECT_EQ(pruned.rows_per_token().at(1), layer.rows_per_token);
}

TEST(Evaluate, HasTheSameBitsForAnyNumberOfThreadsAndKeepsTheMode) {
  const auto model = tiny_model();
  const auto data = quarters("three", "test", 3, 23);
  const Evaluation one = evaluate(*model, data, {.batch_size = 4, .num_loader_threads = 0});
  const Evaluation two = evaluate(*model, data, {.batch_size = 4, .num_loader_threads = 4});
  EXPECT_EQ(one.metrics, two.metrics);
  EXPECT_TRUE(model->is_training());
  model->eval();
  evaluate(*model, data);
  EXPECT_FALSE(model->is_training());
}

TEST(Evaluate, CountsTheDispatchOfImagesByTheGroupsThatTheyHave) {
  const auto model = build_model(
      Document::from_text(R"({"name": "image-moe", "image_size": 4, "channels": 1, "num_classes": 2,
                              "num_experts": 3, "width": 0.1, "router": {"patch_size": 2}})",
                          "model")
          .root(),
      9);
  {
    const torch::NoGradGuard no_grad;
    model->named_parameters()["moe.router.weight"].normal_(0, 1, nn::make_generator(4));
  }
  const auto data = make_rotated_pairs(quarters("three", "test", 3, 23), {}, "pairs");
  const Evaluation found = evaluate(*model, data, {.batch_size = 7});
  model->eval();
  const auto choice =
      model->forward(all_images(data)).routings.at(0).routing.choice.to(torch::kLong);
  std::vector<std::vector<int64_t>> by_class(2, {0, 0, 0}), by_group(3, {0, 0, 0});
  for (int64_t i = 0; i < data->size(); ++i) {
    const auto expert = static_cast<size_t>(choice[i][0].item<int64_t>());
    ++by_class[static_cast<size_t>(data->label(i))][expert];
    ++by_group[static_cast<size_t>(data->group(i))][expert];
  }
  const LayerRouting& layer = found.routing.at(0);
  EXPECT_EQ(layer.by_class.rows, by_class);
  ASSERT_TRUE(layer.by_group);
  EXPECT_EQ(layer.by_group->rows, by_group);
  for (const char* key : {"dispatch_entropy", "dispatch", "group_dispatch"}) {
    EXPECT_TRUE(to_json(found.routing)[0].contains(key)) << key;
  }
}

TEST(Evaluate, RunsInBfloat16WhenToldTo) {
  const auto model = tiny_model();
  const auto data = quarters("three", "test", 3, 23);
  const Evaluation exact = evaluate(*model, data),
                   rounded = evaluate(*model, data, {.precision = "bfloat16"});
  EXPECT_NE(rounded.metric("loss"), exact.metric("loss"));
  EXPECT_NEAR(rounded.metric("loss"), exact.metric("loss"), 2e-2 * exact.metric("loss"));
}

TEST(Evaluate, EnsemblesAreMeasuredAsSuch) {
  Document config = Document::from_text(kModel, "model");
  config.set("name=e3");
  config.set("encoder.moe.ensemble_size=2");
  const auto model = build_model(config.root(), 9);
  fill_with_cosines(*model);
  {
    const torch::NoGradGuard no_grad;
    for (const MoEBlock& block : model->moe_blocks()) {
      block.layer->experts->as<nn::MlpExperts>()->b2.copy_(torch::linspace(-3, 3, 32).view({4, 8}));
    }
  }
  const auto data = quarters("three", "test", 3, 10);
  const Evaluation found = evaluate(*model, data, {.batch_size = 4});
  EXPECT_EQ(found.metric("ensemble.members"), 2);
  const torch::NoGradGuard no_grad;
  const at::Tensor logits = model->forward(all_images(data)).logits.view({10, 2, 3});
  const at::Tensor mean = logits.softmax(2).mean(1);
  double loss = 0;
  for (int64_t i = 0; i < 10; ++i) loss -= std::log(mean[i][data->label(i)].item<double>()) / 10;
  EXPECT_NEAR(found.metric("loss"), loss, 1e-5);
  EXPECT_NEAR(found.metric("ensemble.negative_log_likelihood"), loss, 1e-5);
  EXPECT_FALSE(torch::equal(logits.select(1, 0), logits.select(1, 1)));
}

TEST(Evaluate, EndsEarlyWhenToldTo) {
  const auto model = tiny_model();
  int calls = 0;
  EvaluateOptions options{4, 0, [&](int64_t done, int64_t total) {
                            EXPECT_EQ(done, 4 * calls++);
                            EXPECT_EQ(total, 23);
                            return calls < 3;
                          }};
  EXPECT_FALSE(evaluate(*model, quarters("three", "test", 3, 23), options).is_complete);
  EXPECT_EQ(calls, 3);
}

TEST(Evaluate, CallsOnBatchWithEachBatch) {
  const auto model = tiny_model();
  const auto data = quarters("three", "test", 3, 10);
  int64_t next = 0;
  std::vector<at::Tensor> images, logits;
  EvaluateOptions options;
  options.batch_size = 4;
  options.on_batch = [&](const EvaluatedBatch& batch) {
    EXPECT_EQ(&batch.dataset, data.get());
    EXPECT_EQ(batch.first, next);
    for (int64_t i = 0; i < batch.labels_B.size(0); ++i) {
      EXPECT_EQ(batch.labels_B[i].item<int64_t>(), data->label(next + i));
    }
    EXPECT_FALSE(batch.groups_B.defined());
    next += batch.labels_B.size(0);
    images.push_back(batch.images_BCHW);
    logits.push_back(batch.output.logits);
  };
  evaluate(*model, data, options);
  EXPECT_EQ(next, 10);
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(torch::cat(images), all_images(data)));
  EXPECT_TRUE(torch::allclose(torch::cat(logits), model->forward(all_images(data)).logits));
}

TEST(Evaluate, RefusesDataThatDoesNotFit) {
  const auto model = tiny_model();
  EXPECT_EQ(error_of([&] { evaluate(*model, quarters("two", "test", 2, 4)); }),
            "usage: 'two' has 2 classes, the model has 3; choose data with 3 classes, or a network "
            "with 2 outputs");
  DatasetInfo wide{"wide", "test", "", {"a", "b", "c"}, 1, 4, 8, {0.0}, {1.0}};
  const auto data = make_memory_dataset(wide, std::vector<uint8_t>(32), {0});
  EXPECT_EQ(error_of([&] { evaluate(*model, data); }),
            "usage: 'wide' has images of 1 x 4 x 8 (channels x height x width), the model takes "
            "images of 1 x 4 x 4 (channels x height x width)");
}

/// A run in a folder of its own, whose newest checkpoint is measured.
class EvaluateTrained : public ::testing::Test {
 protected:
  EvaluateTrained() {
    train(folder / "run");
    options.checkpoint = folder / "run";
    options.open = open_tiny;
  }

  TempDir folder;
  EvaluateCheckpointOptions options;
};

/// The images of `data` described otherwise.
std::shared_ptr<const Dataset> described(const Dataset& data, const DatasetInfo& info) {
  std::vector<uint8_t> pixels(static_cast<size_t>(data.size() * 16)), labels;
  for (int64_t i = 0; i < data.size(); ++i) {
    data.image(i, pixels.data() + i * 16);
    labels.push_back(static_cast<uint8_t>(data.label(i)));
  }
  return make_memory_dataset(info, pixels, labels);
}

TEST_F(EvaluateTrained, FindsTheRunsNewestCheckpointAndItsData) {
  const CheckpointEvaluation newest = evaluate_checkpoint(options);
  EXPECT_EQ(newest.data, "two");
  EXPECT_EQ(newest.checkpoint.filename(), "step_12");
  EXPECT_EQ(newest.evaluation.num_images, 9);

  const auto json = to_json(newest);
  EXPECT_EQ(json["routing"][0]["kept"].size(), 2u);
  EXPECT_EQ(json["routing"][0]["experts"], 4);
  EXPECT_EQ(json["parameters"], newest.num_parameters);
  for (const char* key : {"accuracy", "loss", "calibration_error", "images", "images_per_second"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_THAT(to_text(newest), HasSubstr("error (ECE)"));
  const std::vector<int64_t>& kept = newest.evaluation.routing.at(0).kept;
  EXPECT_THAT(to_text(newest), HasSubstr("  experts " + std::to_string(kept.at(0)) + " " +
                                         std::to_string(kept.at(1)) + " of 4 compute "));

  options.checkpoint = folder / "run/checkpoints/pretrain";
  const CheckpointEvaluation whole = evaluate_checkpoint(options);
  EXPECT_GT(whole.num_parameters, newest.num_parameters);
  EXPECT_GT(whole.flops_per_image, newest.flops_per_image);
  EXPECT_THAT(to_text(whole), ::testing::ContainsRegex(
                                  "  4 experts compute [0-9.]+ rows per token; fraction of rows by "
                                  "expert [0-9.]+ [0-9.]+ [0-9.]+ [0-9.]+\n"));
  options.data = "two";
  options.class_name_source = ClassNameSource::data;
  EXPECT_EQ(error_of([&] { evaluate_checkpoint(options); }),
            "usage: 'two' has 2 classes, the model has 3; choose data with 3 classes, or a network "
            "with 2 outputs");
}

/// The images of "three" with their classes in another order, or under other names, or only those
/// of some.
DatasetOpener open_classes(const std::vector<std::string>& classes, bool renamed = false) {
  return [=](std::string_view name, std::string_view split) {
    const auto data = open_tiny(name, split);
    const auto chosen = make_class_subset(data, renamed ? data->info().classes : classes, "chosen");
    DatasetInfo info = chosen->info();
    info.classes = classes;
    return described(*chosen, info);
  };
}

TEST_F(EvaluateTrained, FindsClassesByTheirNames) {
  options.checkpoint = folder / "run/checkpoints/pretrain";
  const CheckpointEvaluation before = evaluate_checkpoint(options);
  options.open = open_classes({"class 2", "class 0", "class 1"});
  const CheckpointEvaluation after = evaluate_checkpoint(options);
  EXPECT_EQ(after.classes, before.classes);
  EXPECT_EQ(after.evaluation.metric("loss"), before.evaluation.metric("loss"));
  for (int64_t a = 0; a < 3; ++a) {
    for (int64_t b = 0; b < 3; ++b) {
      EXPECT_EQ(after.evaluation.confusion.count(a, b), before.evaluation.confusion.count(a, b));
    }
  }
  options.open = open_classes({"class 2", "class 1"});
  const CheckpointEvaluation some = evaluate_checkpoint(options);
  EXPECT_EQ(some.classes, before.classes);
  EXPECT_EQ(some.evaluation.num_images, 6);
  for (const int64_t label : {0, 1, 2}) {
    EXPECT_EQ(some.evaluation.confusion.num_images(label), label == 0 ? 0 : 3);
  }
}

TEST_F(EvaluateTrained, AnUnknownClassIsAnErrorUnlessTheDatasNamesAreTaken) {
  options.checkpoint = folder / "run/checkpoints/pretrain";
  const double loss = evaluate_checkpoint(options).evaluation.metric("loss");
  options.open = open_classes({"class 0", "class x", "class 2"}, /*renamed=*/true);
  EXPECT_THAT(error_of([&] { evaluate_checkpoint(options); }),
              HasSubstr("pretrain: 'chosen': the class 'class x' is not a class of the network; "
                        "the nearest is 'class 0'; --classes-of data takes the data's classes"));
  options.data = "two";
  options.open = open_classes({"class 0", "class x"}, /*renamed=*/true);
  EXPECT_THAT(error_of([&] { evaluate_checkpoint(options); }),
              HasSubstr("rename the class, or leave it out"));
  options.data.clear();
  options.open = open_classes({"class 0", "class x", "class 2"}, /*renamed=*/true);
  options.class_name_source = ClassNameSource::data;
  CheckpointEvaluation taken;
  EXPECT_THAT(test::said_by([&] { taken = evaluate_checkpoint(options); }),
              HasSubstr("the data's class names count, in the order of the outputs; the "
                        "network's names are not used"));
  EXPECT_EQ(taken.evaluation.metric("loss"), loss);
  EXPECT_EQ(taken.classes[1], "class x");
  CheckpointEvaluation alike = taken;
  alike.classes = {"caf\u00e9", "cafe\u0301", "cat"};
  for (const char* name : {" caf\\u{e9}\n", " cafe\\u{301}\n", " cat\n"}) {
    EXPECT_THAT(to_text(alike), HasSubstr(name));
  }
}

TEST_F(EvaluateTrained, MeasuresOnTheSplitThatIsAskedFor) {
  EXPECT_THAT(to_text(evaluate_checkpoint(options)), HasSubstr("two, 9 test images"));
  options.split = "train";
  const CheckpointEvaluation found = evaluate_checkpoint(options);
  EXPECT_EQ(found.evaluation.num_images, 18);
  EXPECT_EQ(to_json(found)["split"], "train");
  EXPECT_THAT(to_text(found), HasSubstr("two, 18 train images"));
  options.split = "validation";
  EXPECT_EQ(error_of([&] { evaluate_checkpoint(options); }),
            "usage: dataset 'two' has no split 'validation'; choose one of train, test");
}

TEST_F(EvaluateTrained, WithoutATestSplitItIsTheValidationSplit) {
  const auto open = [](std::string_view name, std::string_view split) {
    return open_tiny(name, split == "validation" ? "train" : split);
  };
  const auto with_splits = [&](const std::vector<std::string>& splits) {
    options.open = DatasetOpener(open, [splits](std::string_view) { return splits; });
  };
  with_splits({"train", "validation"});
  CheckpointEvaluation found;
  EXPECT_THAT(test::said_by([&] { found = evaluate_checkpoint(options); }),
              HasSubstr("'two' has no test split: its validation split is measured"));
  EXPECT_EQ(to_json(found)["split"], "validation");
  EXPECT_THAT(to_text(found), HasSubstr("two, 18 validation images"));
  options.split = "test";
  EXPECT_EQ(error_of([&] { evaluate_checkpoint(options); }),
            "usage: dataset 'two' has no split 'test'; choose one of train, validation");
  options.split = "";
  with_splits({"train"});
  EXPECT_EQ(error_of([&] { evaluate_checkpoint(options); }),
            "usage: dataset 'two' has no split 'test'; choose one of train");
  with_splits({"train", "validation", "test"});
  EXPECT_EQ(evaluate_checkpoint(options).split, "test");
}

TEST(EvaluateCheckpoint, TakesTheBatchesOfTheRunsOwnEvaluations) {
  TempDir folder;
  train(folder / "run");
  const auto first_batch = [&](const fs::path& checkpoint, std::optional<int64_t> size) {
    int64_t images = 0;
    EvaluateCheckpointOptions options{
        .checkpoint = checkpoint, .batch_size = size, .open = open_tiny};
    options.evaluate.on_batch = [&](const EvaluatedBatch& batch) {
      if (batch.first == 0) images = batch.images_BCHW.size(0);
    };
    evaluate_checkpoint(options);
    return images;
  };
  EXPECT_EQ(first_batch(folder / "run", {}), 4);
  EXPECT_EQ(first_batch(folder / "run/best", {}), 4);
  EXPECT_EQ(first_batch(folder / "run", 5), 5);
  Checkpoint edited = load_checkpoint(folder / "run/best");
  for (const char* stored : {"\"4\"", "0", "-4", "1e9", "18446744073709551615"}) {
    edited.config["run"]["evaluate_batch_size"] = nlohmann::ordered_json::parse(stored);
    save_checkpoint(folder / "edited", edited);
    EXPECT_THAT(
        error_of([&] { first_batch(folder / "edited", std::nullopt); }),
        HasSubstr(std::string("evaluate_batch_size must be 1 to 1048576, found ") + stored[0]))
        << stored;
    EXPECT_EQ(first_batch(folder / "edited", 5), 5) << stored;
  }
  edited.config["run"].erase("evaluate_batch_size");
  save_checkpoint(folder / "edited", edited);
  EXPECT_EQ(first_batch(folder / "edited", {}), 9);
}

/// "two" as described later: with another mean, or in larger images.
std::shared_ptr<const Dataset> open_changed(std::string_view name, std::string_view split) {
  const auto data = open_tiny(name, split);
  DatasetInfo info = data->info();
  info.mean = {0.1};
  return described(*data, info);
}

TEST_F(EvaluateTrained, TakesMeanAndStdOfTheCheckpoint) {
  const CheckpointEvaluation before = evaluate_checkpoint(options);
  options.open = open_changed;
  CheckpointEvaluation after;
  EXPECT_THAT(test::said_by([&] { after = evaluate_checkpoint(options); }),
              HasSubstr("images of 'two' get the checkpoint's mean, which differs"));
  EXPECT_EQ(after.evaluation.metric("loss"), before.evaluation.metric("loss"));
}

TEST(EvaluateCheckpoint, GoesOnWithWhatWasResolvedWhenThePhaseBegan) {
  TempDir folder;
  train(folder / "whole");
  copy_killed_after(folder / "whole", 5, folder / "resumed");
  TrainerOptions changed = options_for(folder / "resumed", true);
  changed.open = [](std::string_view name, std::string_view split) {
    return name == "three" ? open_changed(name, split) : open_tiny(name, split);
  };
  Trainer(config_of(four_phases()), changed).run();
  expect_equal_bits(folder / "whole", folder / "resumed");
}

TEST(EvaluateCheckpoint, KnowsTheLossOfTheCheckpointsPhase) {
  TempDir folder;
  train(folder / "run", {"phases.finetune.loss=sigmoid"});
  const fs::path checkpoints = folder / "run/checkpoints";
  Checkpoint pretrain = load_checkpoint(checkpoints / "pretrain");
  Checkpoint finetune = load_checkpoint(checkpoints / "finetune");
  EXPECT_EQ(trained_loss(pretrain), "softmax");
  EXPECT_EQ(trained_loss(finetune), "sigmoid");
  for (const std::string state : {"{}", "[]", R"({"phase_index": 9})", R"({"phase_index": "1"})"}) {
    finetune.state = Json::parse(state);
    const bool first = state == "{}" || state == "[]" || state.find("\"1\"") != state.npos;
    EXPECT_EQ(trained_loss(finetune), first ? "softmax" : "") << state;
  }
  for (const std::string config : {"{}", R"({"run": {"phases": [{"loss": 1}]}})",
                                   R"({"run": {"phases": [{"loss": "other"}]}})"}) {
    pretrain.config = Json::parse(config);
    EXPECT_EQ(trained_loss(pretrain), "") << config;
  }
}

}  // namespace
}  // namespace moesaic
