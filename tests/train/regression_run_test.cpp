// SPDX-License-Identifier: Apache-2.0
// Runs on real-valued targets, in memory and generated on the fly.
#include <torch/torch.h>

#include "moesaic/checkpoint/store.h"
#include "moesaic/data/dataset.h"
#include "moesaic/models/registry.h"
#include "moesaic/train/evaluate.h"
#include "support/matchers.h"
#include "support/toy_family.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

/// Inputs of 4 x 4 waves; the targets are their mean and their first value.
DatasetInputs waves(int64_t first, int64_t count) {
  const at::Tensor at_NCHW = torch::arange(16 * first, 16 * (first + count), torch::kDouble);
  const at::Tensor x_NCHW = torch::sin(0.7 * at_NCHW).view({count, 1, 4, 4}).to(torch::kFloat);
  const at::Tensor rows = x_NCHW.flatten(1);
  return {.values_NCHW = x_NCHW, .targets_NK = torch::stack({rows.mean(1), rows.select(1, 0)}, 1)};
}

std::shared_ptr<const Dataset> open_waves(std::string_view name, std::string_view split) {
  if (name == "three") return open_tiny(name, split);
  DatasetInfo info{.name = std::string(name), .split = std::string(split)};
  info.targets = {"mean", "first"};
  if (name == "endless" && split == "train") return make_stream_dataset(info, 64, waves);
  return make_input_dataset(info, split == "train" ? waves(0, 64) : waves(100, 10));
}

Trainer trainer(const fs::path& out, const std::vector<std::string>& changes = {}) {
  testing::add_toy_family();
  const std::string json =
      R"({"name": "waves", "seed": 5, "log_every": 10, "evaluate_batch_size": 4, "num_loader_threads": 0,
          "model": {"name": "toy", "image_size": 4, "num_classes": 2},
          "phases": [{"name": "fit", "data": "waves", "batch_size": 16, "steps": 60,
                      "loss": "squared", "evaluate": true, "aux_losses": {"importance": 0.01},
                      "optimizer": {"name": "adamw", "lr": 0.02}}]})";
  TrainerOptions options = options_for(out);
  options.open = DatasetOpener(open_waves);
  return Trainer(config_of(json, changes), options);
}

double squared_error(Model& model, const DatasetInputs& data) {
  const torch::NoGradGuard no_grad;
  model.eval();
  const at::Tensor output_NK = model.forward(data.values_NCHW).logits.to(torch::kDouble);
  double sum = 0.0;
  for (int64_t n = 0; n < output_NK.size(0); ++n) {
    for (int64_t k = 0; k < 2; ++k) {
      const double error = output_NK[n][k].item<double>() - data.targets_NK[n][k].item<double>();
      sum += error * error;
    }
  }
  return sum / static_cast<double>(2 * output_NK.size(0));
}

TEST(RegressionRun, LearnsAndIsMeasuredByItsSquaredError) {
  for (const std::string data : {"waves", "endless"}) {
    SCOPED_TRACE(data);
    const TempDir folder;
    Trainer untrained = trainer("", {"phases.fit.data=" + data});
    const double before = squared_error(*untrained.model(), waves(100, 10));
    Trainer fit = trainer(folder / "run", {"phases.fit.data=" + data});
    const TrainResult result = fit.run();
    const double after = squared_error(*fit.model(), waves(100, 10));
    ASSERT_TRUE(result.evaluation);
    EXPECT_NEAR(result.evaluation->metric("mse"), after, 1e-6);
    EXPECT_EQ(result.evaluation->metrics.count("accuracy"), 0U);
    EXPECT_LT(after, 0.2 * before);
    EXPECT_EQ(load_checkpoint(folder / "run/best").state["best_step"], 60);
  }
}

TEST(RegressionRun, AuxiliaryLossesAreNotZero) {
  const TempDir folder;
  trainer(folder / "run", {"model.noise=1", "phases.fit.steps=20",
                           "phases.fit.aux_losses={\"importance\": 0.01, \"load\": 0.01}"})
      .run();
  int found = 0;
  for (const Json& line : metric_lines(folder / "run")) {
    if (!line.contains("importance")) continue;
    ++found;
    EXPECT_GT(line["importance"].get<double>(), 0.0);
    EXPECT_GT(line["load"].get<double>(), 0.0);
  }
  EXPECT_GE(found, 2);
}

TEST(RegressionRun, RefusesAuxiliaryLossesThatWouldBeZero) {
  const std::string load = "phases.fit.aux_losses={\"load\": 1}";
  EXPECT_THAT(error_of([&] { trainer("", {load}); }),
              AllOf(StartsWith("usage: argument '" + load + "': phase 'fit': aux_losses.load"),
                    HasSubstr("needs noise")));
  const std::string uniform =
      R"(model={"name": "cluster-moe", "num_patches": 4, "width": 4, "num_experts": 4, "router": {}})";
  EXPECT_THAT(error_of([&] {
                trainer("", {uniform, load});
              }),
              HasSubstr("aux_losses.load needs gaussian noise, but the router's noise is uniform"));
  EXPECT_THAT(
      error_of([] { trainer("", {"phases.fit.aux_losses={\"importanse\": 1}"}); }),
      HasSubstr("unknown auxiliary loss 'importanse' in aux_losses; did you mean 'importance'?"));
}

TEST(RegressionRun, RefusesEnsembles) {
  const std::string ensemble =
      R"(model={"name": "e3", "image_size": 4, "patch_size": 2, "hidden_size": 8, "num_classes": 2,
         "encoder": {"num_layers": 2, "num_heads": 2, "mlp_dim": 8, "moe": {"layers": [1],
         "num_experts": 4, "ensemble_size": 2, "router": {"num_selected_experts": 1}}}})";
  EXPECT_THAT(error_of([&] { trainer("", {ensemble}); }),
              AllOf(StartsWith("usage: argument 'model="),
                    HasSubstr("loss 'squared' is for one network, the model is an ensemble of 2")));
  Document document = Document::from_text("{}", "recipe.json");
  document.set(ensemble);
  const auto model = build_model(document.root().at("model"), 1);
  EXPECT_THAT(error_of([&] { evaluate(*model, open_waves("waves", "test")); }),
              HasSubstr("real-valued targets are for one network"));
}

TEST(RegressionRun, NothingIsCountedByClassesThatThereAreNot) {
  const TempDir folder;
  const TrainResult result = trainer(folder / "run", {"phases.fit.steps=2"}).run();
  const auto layer = to_json(result.evaluation->routing).at(0);
  EXPECT_TRUE(layer.contains("load"));
  EXPECT_FALSE(layer.contains("dispatch_entropy"));
  EXPECT_FALSE(layer.contains("dispatch"));
  EXPECT_THAT(to_text(evaluate_checkpoint({.checkpoint = folder / "run", .open = open_waves})),
              AllOf(HasSubstr("mse  "), HasSubstr(" rows per token; "), Not(HasSubstr("entropy"))));
}

TEST(RegressionRun, ObjectiveAndDataHaveToAgree) {
  EXPECT_THAT(error_of([] { trainer("", {"phases.fit.loss=softmax"}); }),
              HasSubstr("phases.fit.loss=softmax"));
  EXPECT_THAT(error_of([] {
                trainer("", {"phases.fit.data=three", "model.num_classes=3"});
              }),
              HasSubstr("loss 'squared' is for real-valued targets"));
  EXPECT_THAT(error_of([] { trainer("", {"model.num_classes=3"}); }),
              HasSubstr("'waves' has 2 targets, the model has 3 outputs"));
}

}  // namespace
}  // namespace moesaic
