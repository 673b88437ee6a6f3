// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/evaluation_figures.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <set>

#include "moesaic/data/dataset.h"
#include "moesaic/models/registry.h"
#include "moesaic/nn/init.h"
#include "moesaic/papers/clusters.h"
#include "moesaic/papers/gated.h"
#include "report/report_fixture.h"

namespace moesaic {
namespace {

using report_test::error_of;

/// 120 examples of three clusters.
std::shared_ptr<const Dataset> clustered() {
  const ClusterMixtureConfig config{.num_clusters = 3, .num_test = 120};
  return make_input_dataset(
      {.name = "clustered", .classes = {"-1", "+1"}, .groups = {"a", "b", "c"}},
      cluster_examples(config, cluster_signals(config), "test", 0, config.num_test));
}

std::shared_ptr<ClusterMoE> clustered_model() {
  ClusterMoEConfig config;
  config.init_scale = 1.0;
  config.router->noise_in_evaluation = false;
  const auto model = std::make_shared<ClusterMoE>(config, 1);
  const torch::NoGradGuard no_grad;
  model->moe->router->weight.normal_(0, 0.3, nn::make_generator(3));
  return model;
}

EvaluationPoints collect(Model& model, const std::shared_ptr<const Dataset>& data,
                         const EvaluationPointsOptions& options, int64_t batch_size = 32) {
  EvaluationPointCollector collector(options);
  const auto add = [&](const EvaluatedBatch& batch) { collector.add(batch); };
  evaluate(model, data, {.batch_size = batch_size, .on_batch = add});
  return collector.points();
}

TEST(EvaluationPoints, AreRowsOfThePlainForwardPass) {
  const auto data = clustered();
  const auto model = clustered_model();
  const DatasetInputs inputs = data->inputs();
  EvaluationPointsOptions options{.num_points = 50};
  const EvaluationPoints points = collect(*model, data, options);
  ASSERT_EQ(points.index_N.size(0), 50);
  const torch::NoGradGuard no_grad;
  model->eval();
  const ModelOutput output = model->forward(inputs.values_NCHW);
  const auto of = [&](const at::Tensor& all) { return all.index_select(0, points.index_N); };
  EXPECT_TRUE(torch::allclose(points.x_ND, of(output.pre_logits)));
  EXPECT_TRUE(torch::equal(points.label_N, of(inputs.labels_N)));
  EXPECT_TRUE(torch::equal(points.group_N, of(inputs.groups_N)));
  EXPECT_TRUE(torch::equal(points.predicted_N, of(output.logits.argmax(1))));
  EXPECT_TRUE(torch::equal(points.expert_N, of(output.routings[0].logits_TE.argmax(1))));
  EXPECT_GT(std::get<0>(at::_unique(points.expert_N)).size(0), 2);
  EXPECT_EQ(points.color, "expert");
  EXPECT_EQ(points.num_experts, 8);

  options.features = "inputs";
  EXPECT_TRUE(torch::equal(collect(*model, data, options).x_ND, of(inputs.values_NCHW.flatten(1))));
}

TEST(EvaluationPoints, AreDrawnByTheSeedAloneWhateverTheBatches) {
  const auto data = clustered();
  const auto model = clustered_model();
  EvaluationPointsOptions options{.num_points = 30};
  const at::Tensor some = collect(*model, data, options, 7).index_N;
  EXPECT_TRUE(torch::equal(some, collect(*model, data, options, 120).index_N));
  EXPECT_EQ(std::get<0>(at::_unique(some)).size(0), 30);
  EXPECT_GT(some[29].item<int64_t>(), 60);
  options.seed = 2;
  EXPECT_FALSE(torch::equal(some, collect(*model, data, options).index_N));
  options.num_points = 1000;
  EXPECT_TRUE(torch::equal(collect(*model, data, options).index_N, torch::arange(120)));
}

TEST(EvaluationPoints, OfOneClassAlone) {
  const auto data = clustered();
  const EvaluationPoints points = collect(*clustered_model(), data, {.only_class = "+1"});
  EXPECT_EQ(points.index_N.size(0), data->inputs().labels_N.sum().item<int64_t>());
  EXPECT_TRUE(points.label_N.eq(1).all().item<bool>());
}

TEST(EvaluationPoints, OfSomeGroupsAlone) {
  EvaluationPointsOptions options{.only_class = "+1", .only_groups = {"c", "a"}};
  const auto data = clustered();
  const EvaluationPoints points = collect(*clustered_model(), data, options);
  const DatasetInputs inputs = data->inputs();
  const at::Tensor wanted = inputs.labels_N.eq(1).logical_and(inputs.groups_N.ne(1));
  EXPECT_TRUE(torch::equal(points.index_N, wanted.nonzero().squeeze(1)));
  options.only_groups = {"a", "d"};
  EXPECT_THAT(error_of([&] { collect(*clustered_model(), data, options); }),
              ::testing::StartsWith("usage: 'clustered' has no group 'd'; "));
}

TEST(EvaluationPoints, OfRealValuedTargetsAreRefused) {
  const GatedMixtureConfig config;
  const auto data = make_input_dataset({.name = "real", .targets = {"y"}},
                                       gated_examples(config, gated_truth(config), "test", 0, 64));
  const auto model = std::make_shared<GatedMoE>(GatedMoEConfig(), 1);
  EXPECT_EQ(error_of([&] { collect(*model, data, {}); }),
            "usage: an image by t-SNE shows classes, but the targets of 'real' are real numbers");
}

TEST(EvaluationPoints, OfANetworkThatRoutesPatchesAreColouredByClass) {
  const auto model = build_model(Document::from_text(train_test::kModel, "model").root(), 9);
  const auto data = train_test::quarters("three", "test", 3, 23);
  const EvaluationPoints points = collect(*model, data, {});
  EXPECT_EQ(points.color, "class");
  EXPECT_FALSE(points.expert_N.defined());
  EXPECT_FALSE(points.group_N.defined());
  const auto refuse = [&](EvaluationPointsOptions options) {
    return error_of([&] { collect(*model, data, options); });
  };
  EXPECT_EQ(refuse({.color = "expert"}),
            "usage: the network does not send each image to one expert; colour by class or group");
  EXPECT_EQ(refuse({.color = "group"}),
            "usage: 'three' has no groups to colour by; choose expert or class");
  EXPECT_EQ(refuse({.has_boundary = true}),
            "usage: 'three' has 3 classes; a decision boundary is drawn between two classes; leave "
            "--tsne-boundary out");
  EXPECT_EQ(refuse({.only_class = "class 3"}),
            "usage: 'three' has no class 'class 3'; did you mean 'class 0'?");
  EXPECT_EQ(refuse({.only_groups = {"a"}}), "usage: 'three' has no group 'a'; it has no groups");
  EXPECT_EQ(refuse({.only_class = "class 2"}),
            "usage: an image by t-SNE needs 10 points, class 'class 2' of 'three' has 7");
}

TEST(EvaluationPoints, ADroppedImageHasNoExpert) {
  const auto data = clustered();
  const auto model = clustered_model();
  ModelOutput output;
  output.logits = output.pre_logits = torch::zeros({4, 2});
  RoutingRecord record;
  record.logits_TE = torch::zeros({4, 6});
  record.kept = {1, 5};
  const auto ints = torch::kInt;
  record.routing.offsets = torch::tensor({0, 1, 3}, ints);
  record.routing.token = torch::tensor({2, 0, 3, 0}, ints);  // the last row is unused
  record.routing.token_offsets = torch::tensor({0, 1, 1, 2, 3}, ints);
  output.routings.push_back(record);
  EvaluationPointCollector collector({});
  const at::Tensor images = data->inputs().values_NCHW, labels = torch::zeros({4}, torch::kLong);
  for (int64_t first = 0; first < 120; first += 4) {
    collector.add({*data, first, images.narrow(0, first, 4), labels, {}, {}, output, *model});
  }
  EXPECT_TRUE(torch::equal(collector.points().expert_N.narrow(0, 0, 4),
                           torch::tensor({5, -1, 1, 5}, torch::kLong)));
}

}  // namespace
}  // namespace moesaic
