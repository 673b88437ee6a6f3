// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/expert_loads.h"

#include <torch/torch.h>

#include "moesaic/models/registry.h"
#include "support/matchers.h"
#include "support/warnings.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using ::testing::DoubleNear;

std::shared_ptr<Model> network(const std::string& router) {
  const std::string text = R"({"name": "vmoe", "image_size": 4, "patch_size": 2, "hidden_size": 8,
      "num_classes": 3, "encoder": {"num_layers": 2, "num_heads": 2, "mlp_dim": 8, "moe":
      {"layers": [1], "num_experts": 4, "router": )" +
                           router + "}}}";
  return build_model(Document::from_text(text, "model").root(), 9);
}

std::map<std::string, double> taken(ExpertLoadMeter& meter) {
  const at::Tensor values = meter.take();
  EXPECT_EQ(values.scalar_type(), at::kDouble);
  EXPECT_EQ(values.numel(), std::ssize(meter.names()));
  std::map<std::string, double> metrics = {{"loss", 2.0}};
  for (size_t i = 0; i < meter.names().size(); ++i) {
    metrics[meter.names()[i]] = values[static_cast<int64_t>(i)].item<double>();
  }
  return metrics;
}

TEST(ExpertLoadMeter, CountsRowsAndDropsOfTrainingPasses) {
  const auto model = network(R"({"num_selected_experts": 2, "dispatcher": {"capacity": 3}})");
  ExpertLoadMeter meter(*model);
  std::vector<double> rows(4), selected(4);
  for (const int64_t images : {3, 5}) {
    model->train();
    const RoutingRecord record = model->forward(torch::rand({images, 1, 4, 4})).routings.at(0);
    for (int64_t e = 0; e < 4; ++e) {
      const auto expert = static_cast<size_t>(e);
      rows[expert] +=
          record.routing.offsets[e + 1].item<int>() - record.routing.offsets[e].item<int>();
      selected[expert] += record.routing.choice.eq(e).sum().item<int>();
    }
    model->eval();
    model->forward(torch::rand({2, 1, 4, 4}));  // Is not counted.
  }
  std::map<std::string, double> metrics = taken(meter);
  const std::vector<LayerLoads> layers = take_loads(metrics);
  EXPECT_THAT(metrics, ElementsAre(::testing::Pair("loss", 2.0)));
  ASSERT_EQ(layers.size(), 1U);
  EXPECT_EQ(layers[0].block, 1);
  EXPECT_THAT(layers[0].kept, ElementsAre(0, 1, 2, 3));
  const double all = rows[0] + rows[1] + rows[2] + rows[3];
  EXPECT_LT(all, 2.0 * 8 * 5);  // Some were dropped.
  for (size_t e = 0; e < 4; ++e) {
    EXPECT_DOUBLE_EQ(layers[0].load.at(e), rows[e] / all);
    const double dropped = selected[e] > 0 ? 1.0 - rows[e] / selected[e] : 0.0;
    EXPECT_NEAR(layers[0].dropped.at(e), dropped, 1e-12);
  }
  for (const auto& [name, value] : taken(meter)) {  // It starts again.
    if (name != "loss") EXPECT_EQ(value, 0.0) << name;
  }
}

TEST(ExpertLoadMeter, NamesTheKeptExpertsAndNoDropsWithoutACapacity) {
  const auto model = network(R"({"num_selected_experts": 2})");
  model->moe_blocks()[0].layer->keep_experts({1, 3});
  {
    ExpertLoadMeter meter(*model);
    model->train();
    model->forward(torch::rand({3, 1, 4, 4}));
    std::map<std::string, double> metrics = taken(meter);
    const std::vector<LayerLoads> layers = take_loads(metrics);
    ASSERT_EQ(layers.size(), 1U);
    EXPECT_THAT(layers[0].kept, ElementsAre(1, 3));
    EXPECT_NEAR(layers[0].load.at(0) + layers[0].load.at(1), 1.0, 1e-12);
    EXPECT_TRUE(layers[0].dropped.empty());
  }
  model->forward(torch::rand({3, 1, 4, 4}));  // Without an observer.
}

TEST(TakeLoads, OrdersExpertsByNumberAndPassesOverWhatIsNone) {
  std::map<std::string, double> metrics = {{"experts/", 1.0}, {"experts/1/rows", 1.0}};
  for (const int e : {10, 9, 100}) metrics[fmt::format("experts/000002/rows/{:06}", e)] = e + 1;
  const std::vector<LayerLoads> layers = take_loads(metrics);
  EXPECT_TRUE(metrics.empty());
  ASSERT_EQ(layers.size(), 1U);
  EXPECT_THAT(layers[0].kept, ElementsAre(9, 10, 100));
  EXPECT_THAT(layers[0].load, ElementsAre(10.0 / 122, 11.0 / 122, 101.0 / 122));
}

TEST(StarvedExpertDetector, NamesEachOnceUntilItRecovers) {
  StarvedExpertDetector starved(0.05, 100);
  const auto add = [&](double load, int64_t steps) {
    return starved.add({{.block = 3, .kept = {2, 7}, .load = {1.0 - load, load}}}, steps);
  };
  EXPECT_THAT(add(0.02, 60), ElementsAre());
  const auto messages = add(0.02, 60);
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_THAT(messages[0], HasSubstr("block 3: expert 7 has had less than 5 % of a uniform load "
                                     "for 120 steps, now 4 %; raise"));
  EXPECT_THAT(add(0.01, 500), ElementsAre());
  EXPECT_THAT(add(0.025, 1), ElementsAre());  // 5 % of a uniform load is enough.
  EXPECT_THAT(add(0.0, 99), ElementsAre());
  EXPECT_THAT(add(0.0, 1), ElementsAre(HasSubstr("for 100 steps")));
}

TEST(StarvedExpertDetector, FindsNoneWithoutStepsOrRows) {
  StarvedExpertDetector never(0.05, 0), starved(0.05, 1);
  EXPECT_THAT(never.add({{.block = 1, .kept = {0, 1}, .load = {1.0, 0.0}}}, 9), ElementsAre());
  EXPECT_THAT(starved.add({{.block = 1, .kept = {0, 1}, .load = {0.0, 0.0}}}, 9), ElementsAre());
}

TEST(Trainer, WritesLoadsAndRouterNormsAndWarnsOfStarvedExperts) {
  const TempDir folder;
  const testing::Warnings warnings;
  train(folder / "run", {"log_every=1", "starved_expert_share=1", "starved_expert_steps=2"});
  EXPECT_THAT(warnings.texts(), ::testing::Contains(HasSubstr(": block 1: expert ")));
  int64_t trained = 0;
  for (const Json& line : metric_lines(folder / "run")) {
    if (line["kind"] == "prune") continue;
    const Json& layer = line.at("routing").at(0);
    EXPECT_EQ(layer.at("layer"), 1);
    const auto load = layer.at("load").get<std::vector<double>>();
    EXPECT_EQ(load.size(), layer.at("kept").size());
    double sum = 0.0;
    for (const double part : load) sum += part;
    EXPECT_THAT(sum, DoubleNear(1.0, 1e-3)) << line;
    EXPECT_EQ(layer.contains("router_norm"), line["kind"] == "eval") << line;
    if (line["kind"] == "train") ++trained;
  }
  EXPECT_EQ(trained, 12);
  const Json state = Json::parse(read_text(folder / "run/checkpoints/recover/state.json"));
  EXPECT_TRUE(state.at("window").at("sums").empty()) << state;
  std::string events;
  for (const auto& entry : fs::directory_iterator(folder / "run")) {
    if (entry.path().filename().string().starts_with("events.")) events += read_text(entry.path());
  }
  for (const char* tag : {"train/pretrain/block_1/load", "test/recover/block_1/router_norm",
                          "test/recover/experts/router_norm"}) {
    EXPECT_THAT(events, HasSubstr(tag));
  }
}

}  // namespace
}  // namespace moesaic
