// SPDX-License-Identifier: Apache-2.0
// Algorithms 1 and 2 of the pMoE paper as runs.
#include "moesaic/data/dataset.h"
#include "moesaic/data/derived.h"
#include "moesaic/data/source.h"
#include "moesaic/papers/pmoe.h"
#include "papers/run_fixture.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using at::Tensor;

constexpr const char* kSeparate = R"({"name": "patches", "seed": 5, "checkpoint_every": 10,
    "num_checkpoints": 100, "num_loader_threads": 0, "evaluate_batch_size": 500,
    "model": {"preset": "pmoe/separate", "image_size": [16, 50], "patch_size": [1, 50], "num_neurons": 4,
              "router": {"num_selected_patches": 4}},
    "phases": [
      {"name": "routers", "kind": "patch_sgd", "data": "patch-patterns", "loss": "linear",
       "num_samples": 50, "epochs": 4, "lr": 0.0625, "chunk_size": 5, "evaluate": false},
      {"name": "experts", "kind": "patch_sgd", "data": "patch-patterns", "num_samples": 50, "epochs": 10,
       "chunk_size": 5}]})";

constexpr const char* kJoint = R"({"name": "patches", "seed": 5, "num_loader_threads": 0,
    "evaluate_batch_size": 500,
    "model": {"preset": "pmoe/joint", "image_size": [16, 50], "patch_size": [1, 50]},
    "phases": [{"name": "train", "kind": "patch_sgd", "data": "patch-patterns", "num_samples": 50,
                "epochs": 6}]})";

std::shared_ptr<PMoE> trained(const std::string& recipe,
                              const std::vector<std::string>& changes = {}) {
  return std::dynamic_pointer_cast<PMoE>(train_in_memory(config_of(recipe, changes)));
}

TEST(PatchRun, GoesOnWithTheSameBits) {
  expect_same_files(config_of(kSeparate), {10, 20}, {"checkpoints/experts/model.safetensors"});
  EXPECT_TRUE(torch::equal(trained(kSeparate)->experts->w,
                           trained(kSeparate, {"phases.experts.chunk_size=7"})->experts->w))
      << "blocks have no part in the result";
}

/// Fifty samples of the runs above: both phases take them from where the run's seed says.
DatasetInputs patches_of_the_run(int64_t first) {
  const auto data = open_dataset("patch-patterns", "train");
  return data->generate(static_cast<int64_t>(mix64(5) >> 23) + first, 50);
}

Tensor linear_gradient(const DatasetInputs& inputs) {
  const Tensor y = (1 - 2 * inputs.labels_N).to(torch::kFloat).unsqueeze(1);
  return (y * inputs.values_NCHW.squeeze(1).sum(1)).mean(0);
}

/// The linear loss moves routers by the mean difference of the classes, whatever the order.
TEST(PatchRun, RoutersOfTheLinearLossFollowItsFormula) {
  const auto before = trained(kSeparate, {"phases.routers.epochs=0", "phases.experts.epochs=0"});
  const auto after = trained(kSeparate, {"phases.routers.batch_size=50", "phases.routers.epochs=3",
                                         "phases.experts.epochs=0"});
  const Tensor moved = after->moe->router->weight - before->moe->router->weight;
  const Tensor step = linear_gradient(patches_of_the_run(0)) * 0.0625 * 3;
  expect_close(moved[0], step.to(torch::kDouble), 1e-5);
  expect_close(moved[1], -step.to(torch::kDouble), 1e-5);
}

TEST(PatchRun, ExpertsLeaveSeparatelyTrainedRoutersAsTheyAre) {
  const auto half = trained(kSeparate, {"phases.experts.epochs=0"}), all = trained(kSeparate);
  EXPECT_TRUE(torch::equal(half->moe->router->weight, all->moe->router->weight));
  EXPECT_FALSE(torch::equal(half->experts->w, all->experts->w));
  const auto joint = trained(kJoint), frozen = trained(kJoint, {"phases.0.frozen=[\"router\"]"});
  const auto start = trained(kJoint, {"phases.0.epochs=0"});
  const auto router = [](const auto& model) { return model->moe->router->weight; };
  EXPECT_FALSE(torch::equal(router(joint), router(start)));
  EXPECT_TRUE(torch::equal(router(frozen), router(start)));
  EXPECT_FALSE(torch::equal(frozen->experts->w, start->experts->w));
}

/// The loss (eqs. 2, 10) of model (1) in float64, with gates of 0 where nothing is selected.
Tensor patch_loss(const PMoE& model, const Tensor& x_Bnd, const Tensor& label_B) {
  const auto wide = [](const Tensor& tensor) { return tensor.to(torch::kDouble); };
  const Tensor x = wide(x_Bnd);
  const Tensor hidden = torch::einsum("bnd,kdh->bknh", {x, wide(model.experts->w)}).relu();
  Tensor gate = torch::ones({x.size(0), hidden.size(1), x.size(1)}, torch::kDouble);
  if (!model.moe.is_empty()) {
    const auto& rule = model.moe->options().rule;
    const auto [value, place] =
        torch::einsum("bnd,kd->bkn", {x, wide(model.moe->router->weight)}).topk(rule.l, 2);
    const bool one = rule.gate == Gate::one;
    gate = torch::zeros_like(gate).scatter(2, place, one ? at::ones_like(value) : value.softmax(2));
  }
  const Tensor f = torch::einsum("bkn,bknh,kho->b", {gate, hidden, wide(model.experts->a)}) /
                   model.settings().divisor_value();
  return torch::nn::functional::softplus((2 * label_B - 1).to(torch::kDouble) * f).mean();
}

TEST(PatchRun, AnEpochOfOneBatchIsAStepOnTheLossOfTheModel) {
  for (const char* model : {"pmoe/joint", "pmoe/separate", "pmoe/cnn"}) {
    SCOPED_TRACE(model);
    const std::string preset = std::string("model.preset=") + model;
    const auto start = trained(kJoint, {preset, "phases.0.epochs=0"});
    const auto moved = trained(kJoint, {preset, "phases.0.epochs=1", "phases.0.batch_size=50"});
    const DatasetInputs inputs = patches_of_the_run(0);
    patch_loss(*start, inputs.values_NCHW.squeeze(1), inputs.labels_N).backward();
    const auto wanted = moved->named_parameters();
    for (auto& item : start->named_parameters()) {
      Tensor step = item.value().detach().clone();
      if (item.value().grad().defined()) step -= 0.2 * item.value().grad();
      expect_close(wanted[item.key()].detach(), step.to(torch::kDouble), 1e-5);
    }
  }
}

TEST(PatchRun, SeedsSeeOtherSamplesAndSizesTheSameFirstOnes) {
  const auto router = [](const std::vector<std::string>& changes) {
    std::vector<std::string> all = {"phases.experts.epochs=0", "model.router.init_std=0",
                                    "phases.routers.epochs=1", "phases.routers.batch_size=50"};
    all.insert(all.end(), changes.begin(), changes.end());
    return trained(kSeparate, all)->moe->router->weight.detach().clone();
  };
  EXPECT_FALSE(torch::allclose(router({}), router({"seed=6"})));
  // One step on N samples is their mean; twice that of 50 less that of 100 is that of the rest.
  const Tensor rest =
      2 * router({"phases.routers.num_samples=100", "phases.routers.batch_size=100"}) - router({});
  const Tensor step = linear_gradient(patches_of_the_run(50)) * 0.0625;
  expect_close(rest[0], step.to(torch::kDouble), 1e-5);
}

TEST(PatchRun, TakesEndlessImagesFromWhereTheSeedSays) {
  const auto tiles = [](std::string_view, std::string_view split) {
    return make_mosaic(
        open_tiny("three", split),
        {.deciding = {"class 0", "class 1"}, .grid = 2, .num_train = 6, .num_test = 4},
        MosaicContent::images, "tiles", "");
  };
  TrainerOptions options = options_with_described("");
  options.open = tiles;
  constexpr int64_t kSamples = 40;  // More than an epoch has.
  Trainer trainer(
      config_of(kSeparate,
                {"phases.experts.epochs=0", "model.router.init_std=0",
                 "model.router.num_selected_patches=2", "model.image_size=8", "model.patch_size=4",
                 "phases.routers.data=tiles", "phases.experts.data=tiles",
                 "phases.routers.epochs=1", "phases.routers.num_samples=40",
                 "phases.experts.num_samples=40", "phases.routers.batch_size=40"}),
      options);
  trainer.run();
  const auto network = std::dynamic_pointer_cast<PMoE>(trainer.model());
  const auto data = tiles("tiles", "train");
  const auto first = static_cast<int64_t>(mix64(5) >> 23);
  Tensor x = torch::empty({kSamples, 1, 8, 8}, torch::kUInt8), y = torch::empty({kSamples, 1});
  for (int64_t i = 0; i < kSamples; ++i) {
    data->image(first + i, x[i].mutable_data_ptr<uint8_t>());
    y[i] = 1 - 2 * static_cast<double>(data->label(first + i));
  }
  x = (x.to(torch::kFloat) / 255 - data->info().mean[0]) / data->info().std[0];
  const Tensor patch_sum = x.reshape({kSamples, 2, 4, 2, 4}).sum(3).sum(1).flatten(1);
  expect_close(network->moe->router->weight[0],
               ((y * patch_sum).mean(0) * 0.0625).to(torch::kDouble), 1e-5);
}

TEST(PatchRun, RefusesWhatDoesNotFit) {
  const auto refusal = [](const std::string& recipe, const std::vector<std::string>& changes) {
    return error_of([&] { trained(recipe, changes); });
  };
  EXPECT_THAT(refusal(kSeparate, {"model.router.num_selected_patches=17"}),
              HasSubstr("select 17 of 16 patches"));
  EXPECT_THAT(refusal(kSeparate, {"model.patch_size=[1, 30]"}),
              HasSubstr("do not divide an image"));
  EXPECT_THAT(
      refusal(kSeparate, {"phases.experts.num_samples=1"}),
      AllOf(HasSubstr("phases.experts.num_samples"), HasSubstr("cannot cover all 2 classes")));
  EXPECT_THAT(refusal(kJoint, {"phases.0.loss=linear"}), HasSubstr("8 experts and 2 classes"));
  EXPECT_THAT(refusal(kJoint, {"phases.0.trainable=[\"nothing\"]"}), HasSubstr("phase 'train'"));
  EXPECT_THAT(refusal(kJoint, {"phases.0.frozen=[\"mixture\"]"}), HasSubstr("phase 'train'"));
  EXPECT_THAT(refusal(std::string(R"({"name": "x", "model": )") + kModel +
                          R"(, "phases": [{"name": "p", "kind": "patch_sgd", "data": "three",
                             "steps": 1}]})",
                      {}),
              HasSubstr("needs a patch-level mixture"));
  const std::string three = R"({"name": "x", "model": {"name": "pmoe", "image_size": 4,
      "patch_size": 2, "num_classes": 3, "router": {"num_selected_patches": 2}}, "phases": [{"name": "p",
      "kind": "patch_sgd", "data": "three", "steps": 1}]})";
  EXPECT_THAT(refusal(three, {"phases.0.num_samples=19"}),
              HasSubstr("'three' has 18 samples, not 19"));
  EXPECT_THAT(refusal(three, {"model.num_classes=2"}), HasSubstr("classes"));
}

}  // namespace
}  // namespace moesaic
