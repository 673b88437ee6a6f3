// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <cmath>

#include "moesaic/data/source.h"
#include "papers/pruning_theory/pattern_fixture.h"

namespace moesaic {
namespace {

using report_test::measured;
using report_test::pattern_data;
using report_test::pattern_model;

std::shared_ptr<const Dataset> some_data() {
  const DatasetInputs data = pattern_tokens({.num_patterns = 12, .num_tokens = 8}, "test", 0, 4);
  return pattern_data(data.values_NCHW.flatten(1), data.labels_N);
}

/// The table has every neuron of these experts in turn; `slots` are their places in the weights.
void expect_neurons(const MeasuredTable& table, const PatternMoE& model,
                    const std::vector<int64_t>& experts, const std::vector<int64_t>& slots) {
  ASSERT_EQ(table.rows.size(), 5 * experts.size());
  ASSERT_EQ(table.columns.size(), 12U);
  EXPECT_EQ(table.columns[1], "pattern 2");
  for (size_t row = 0; row < table.rows.size(); ++row) {
    const size_t j = row % 5;
    EXPECT_EQ(table.rows[row], "expert " + std::to_string(experts[row / 5] + 1) + ", neuron " +
                                   std::to_string(j + 1));
    for (size_t p = 0; p < 12; ++p) {
      const auto w =
          model.experts->w[slots[row / 5]][static_cast<int64_t>(p)][static_cast<int64_t>(j)]
              .item<double>();
      EXPECT_NEAR(table.values[row][p], w, 5.1e-6) << row << " " << p;
      EXPECT_EQ(table.values[row][p], std::round(1e5 * table.values[row][p]) / 1e5);
    }
  }
}

TEST(Neurons, AreThoseOfTheLargestAndTheSmallestRouterOfEitherSign) {
  const auto model = pattern_model();
  const double norms[] = {2, 3, 1, 5, 4, 6};
  for (int64_t e = 0; e < 6; ++e) model->moe->router->weight.detach()[e].fill_(norms[e]);
  auto tables = measured("neurons", *model, some_data()).tables;
  ASSERT_EQ(tables.size(), 4U);
  EXPECT_EQ(tables.at("single_router_pattern_2").rows,
            (std::vector<std::string>{"expert 6", "expert 5"}));
  EXPECT_EQ(tables.at("single_router_pattern_2").values[1], std::vector<double>(12, 4.0));
  expect_neurons(tables.at("single_neuron_pattern_1"), *model, {1, 2}, {1, 2});
  expect_neurons(tables.at("single_neuron_pattern_2"), *model, {5, 4}, {5, 4});
  // A removed expert is none of them, and an only one is shown once.
  model->moe->keep_experts({0, 2, 5});
  tables = measured("neurons", *model, some_data()).tables;
  expect_neurons(tables.at("single_neuron_pattern_1"), *model, {0, 2}, {0, 1});
  expect_neurons(tables.at("single_neuron_pattern_2"), *model, {5}, {2});
}

TEST(Neurons, HaveATableForEachGroupThatPruningRanksApart) {
  const DataSplits data = {{"train", some_data()}, {"test", some_data()}};
  const auto metrics = probes().at("neurons").metrics(*pattern_model(), data);
  ASSERT_EQ(metrics.size(), 4U);
  EXPECT_EQ(metrics[1].name, "single_neuron_pattern_2");
  EXPECT_TRUE(metrics[1].is_table);
  const auto clusters = report_test::cluster_network();
  EXPECT_TRUE(probes().at("neurons").metrics(*clusters, data).empty()) << "of another width";
  const DataSplits own = {{"train", open_dataset("clusters-setting3", "train")}};
  const auto of_clusters = probes().at("neurons").metrics(*clusters, own);
  ASSERT_FALSE(of_clusters.empty());
  EXPECT_EQ(of_clusters[0].name.substr(0, 14), "single_expert_");
  EXPECT_EQ(of_clusters[0].name.substr(of_clusters[0].name.size() - 2), "_1");
}

}  // namespace
}  // namespace moesaic
