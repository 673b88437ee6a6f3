// SPDX-License-Identifier: Apache-2.0
// The probe "routed", and the picture of routed patches.
#include <torch/torch.h>

#include "base/support.h"
#include "moesaic/base/file.h"
#include "moesaic/data/dataset.h"
#include "moesaic/papers/pmoe.h"
#include "moesaic/report/evaluation_figures.h"
#include "moesaic/report/probe.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using at::Tensor;

/// Two experts of two of four patches, which are single numbers: the first takes the largest, the
/// second the smallest.
std::shared_ptr<PMoE> two_experts(const PMoERouterConfig& router = {.num_selected_patches = 2}) {
  const PMoEConfig config{
      .image_size = 2, .patch_size = 1, .num_experts = 2, .num_neurons = 1, .router = router};
  auto model = std::make_shared<PMoE>(config, 1);
  model->moe->router->weight.detach().copy_(torch::tensor({{1.0F}, {-1.0F}}));
  return model;
}

DatasetInfo four_places() {
  return {.name = "places",
          .split = "test",
          .classes = {"first", "second"},
          .groups = {"p1", "p2", "p3", "p4"}};
}

/// What the probe finds on this data.
Measurement routed_patches(Model& model, const std::shared_ptr<const Dataset>& data) {
  const c10::InferenceMode inference;
  ProbedModel subject(model, 0, {{"train", data}, {"test", data}}, {.num_loader_threads = 0});
  Measurement found;
  probes().at("routed").measure(subject, found);
  return found;
}

TEST(RoutedProbe, CountsThePatchesThatDecide) {
  const Tensor x = torch::tensor({{4.0F, 3.0F, 2.0F, 1.0F},
                                  {4.0F, 3.0F, 2.0F, 1.0F},
                                  {4.0F, 3.0F, 2.0F, 1.0F},
                                  {1.0F, 2.0F, 3.0F, 4.0F}});
  const Tensor label = torch::tensor({0, 0, 1, 1}), place = torch::tensor({0, 1, 2, 0});
  const DatasetInputs inputs{
      .values_NCHW = x.view({4, 1, 2, 2}), .labels_N = label, .groups_N = place};
  const auto model = two_experts();
  const auto metrics = [&](const std::shared_ptr<const Dataset>& data) {
    return probes().at("routed").metrics(*model, {{"train", data}, {"test", data}}).size();
  };
  const auto data = make_input_dataset(four_places(), inputs);
  EXPECT_EQ(metrics(data), 6U);
  const Measurement found = routed_patches(*model, data);
  // Class 1: expert 1 gets both, the first with the largest gate. Class 2: expert 2 gets both, only
  // the last with the largest gate.
  EXPECT_EQ(found.numbers.at("routed_class_1"), 100.0);
  EXPECT_EQ(found.numbers.at("largest_gate_class_1"), 50.0);
  EXPECT_EQ(found.numbers.at("routed_class_2"), 100.0);
  EXPECT_EQ(found.numbers.at("largest_gate_class_2"), 50.0);
  EXPECT_EQ(found.numbers.at("routed_by_any_class_1"), 100.0);
  DatasetInfo other = four_places();
  other.groups.push_back("p5");
  EXPECT_EQ(metrics(make_input_dataset(other, inputs)), 0U);
}

/// By lemma 4.1 it is expert c that gets the patches of class c.
TEST(RoutedProbe, OfSeparateTrainingIsOfTheExpertOfTheClass) {
  // Expert 1 takes the largest patch, expert 2 the smallest: of class 1 each gets one example's.
  const Tensor x = torch::tensor({4.0F, 3.0F, 2.0F, 1.0F}).repeat({3, 1});
  const auto data = make_input_dataset(four_places(), {.values_NCHW = x.view({3, 1, 2, 2}),
                                                       .labels_N = torch::tensor({0, 0, 1}),
                                                       .groups_N = torch::tensor({0, 3, 0})});
  const auto model = two_experts({.num_selected_patches = 1, .gate = "one"});
  const Measurement found = routed_patches(*model, data);
  EXPECT_EQ(found.numbers.at("routed_class_1"), 50.0);
  EXPECT_EQ(found.numbers.at("routed_class_2"), 0.0) << "expert 1 gets it";
  EXPECT_EQ(found.numbers.at("routed_by_any_class_2"), 100.0);
}

std::shared_ptr<const Dataset> grey_images() {
  DatasetInfo info{"grey", "test", "", {"first", "second"}, 1, 2, 2, {0}, {1}};
  return make_memory_dataset(info, {250, 200, 150, 100, 10, 20, 30, 40, 7, 7, 7, 7}, {0, 1, 0});
}

RoutedImages collected(Model& model, const std::shared_ptr<const Dataset>& data, int64_t images) {
  RoutedImageCollector collector(images);
  EvaluateOptions options{.batch_size = 1, .num_loader_threads = 0};
  options.on_batch = [&](const EvaluatedBatch& batch) { collector.add(batch); };
  evaluate(model, data, options);
  return collector.images();
}

TEST(RoutingImages, ShowTheFirstImagesAndWhatEachExpertGot) {
  const auto model = two_experts();
  const RoutedImages found = collected(*model, grey_images(), 2);
  EXPECT_EQ(found.experts, (std::vector<int64_t>{0, 1}));
  EXPECT_TRUE(torch::equal(found.pixels_NCHW.flatten(),
                           torch::tensor({250, 200, 150, 100, 10, 20, 30, 40}).to(torch::kByte)));
  EXPECT_TRUE(torch::equal(found.weight_NPK.select(2, 0).gt(0).to(torch::kLong),
                           torch::tensor({{1, 1, 0, 0}, {0, 0, 1, 1}})));
  const Figure figure = routing_images_figure(found, "where");
  EXPECT_THAT(figure.script, HasSubstr("'expert 0'"));
  EXPECT_THAT(figure.script, HasSubstr("'expert 1'"));
  // The sheet row by row: two images, and two white columns between them.
  EXPECT_THAT(figure.data,
              HasSubstr("0\t0\t250\t250\t250\n1\t0\t200\t200\t200\n2\t0\t255\t255\t255\n"
                        "3\t0\t255\t255\t255\n4\t0\t10\t10\t10\n5\t0\t20\t20\t20\n"
                        "0\t1\t150\t150\t150\n"));
  // The second image of the first row is after a gap of 2; its lower patches are the first
  // expert's.
  EXPECT_THAT(figure.data, HasSubstr("3.500\t0.500\t3.500\t4.500\t0.500\t1.500\n4.500\t0.500"));
  const test::TempDir folder;
  draw_figure_file(folder / "where.png", figure);
  EXPECT_THAT(read_text(folder / "where.png"), ::testing::StartsWith("\x89PNG"));
}

TEST(RoutingImages, RefuseWhatHasNoPatches) {
  PMoE cnn({.image_size = 2, .patch_size = 1, .num_experts = 1, .router = {}}, 1);
  EXPECT_THAT(test::usage_of([&] { collected(cnn, grey_images(), 2); }),
              HasSubstr("no layer that routes patches"));
  const auto inputs =
      make_input_dataset(four_places(), {.values_NCHW = torch::zeros({1, 1, 2, 2}),
                                         .labels_N = torch::zeros({1}, torch::kLong),
                                         .groups_N = torch::zeros({1}, torch::kLong)});
  EXPECT_THAT(test::usage_of([&] { collected(*two_experts(), inputs, 2); }),
              HasSubstr("are not images"));
}

}  // namespace
}  // namespace moesaic
