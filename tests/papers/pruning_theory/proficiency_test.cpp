// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <numeric>

#include "papers/pruning_theory/pattern_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using report_test::measured;
using report_test::pattern_data;
using report_test::pattern_model;

/// Whether an expert with this row of the router selects the token of pattern `own` among an
/// example's with a gate of at least 1 / 3, by loops.
bool selects(const std::vector<double>& router, const std::vector<int64_t>& tokens, int64_t own) {
  const auto logit = [&](size_t token) { return router[static_cast<size_t>(tokens[token])]; };
  std::vector<size_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logit(a) > logit(b); });
  order.resize(3);
  double sum = 0.0;
  for (const size_t token : order) sum += std::exp(logit(token));
  for (const size_t token : order) {
    if (tokens[token] == own) return std::exp(logit(token)) / sum >= 1.0 / 3.0 - 1e-6;
  }
  return false;
}

std::vector<double> row_of(const PatternMoE& model, int64_t expert) {
  std::vector<double> row;
  for (int64_t p = 0; p < 12; ++p) {
    row.push_back(model.moe->router->weight[expert][p].item<double>());
  }
  return row;
}

/// Fractions of the examples of either class whose pattern the expert selects.
std::vector<double> fractions_by_loops(const PatternMoE& model, int64_t expert,
                                       const DatasetInputs& data) {
  std::vector<double> hits(2, 0.0), examples(2, 0.0);
  for (int64_t i = 0; i < data.labels_N.size(0); ++i) {
    std::vector<int64_t> tokens;
    for (int64_t t = 0; t < 8; ++t)
      tokens.push_back(data.values_NCHW.flatten(1)[i][t].item<int64_t>());
    const auto label = data.labels_N[i].item<int64_t>();
    examples[static_cast<size_t>(label)] += 1.0;
    hits[static_cast<size_t>(label)] += selects(row_of(model, expert), tokens, label) ? 1.0 : 0.0;
  }
  return {hits[0] / examples[0], hits[1] / examples[1]};
}

double norm_by_loops(const PatternMoE& model, int64_t expert) {
  double sum = 0.0;
  for (const double w : row_of(model, expert)) sum += w * w;
  return std::sqrt(sum);
}

/// More than one batch of the probe's 500 examples.
DatasetInputs some_examples() {
  return pattern_tokens({.num_patterns = 12, .num_tokens = 8}, "test", 0, 700);
}

std::shared_ptr<const Dataset> example_data() {
  const DatasetInputs data = some_examples();
  return pattern_data(data.values_NCHW.flatten(1), data.labels_N);
}

void expect_table(PatternMoE& model, const std::vector<int64_t>& experts) {
  const DatasetInputs data = some_examples();
  const MeasuredTable table =
      measured("proficiency", model, example_data()).tables.at("proficiency");
  EXPECT_THAT(table.columns, ElementsAre("p1", "p2", "router norm"));
  ASSERT_EQ(table.values.size(), experts.size());
  for (size_t k = 0; k < experts.size(); ++k) {
    const std::vector<double> wanted = fractions_by_loops(model, experts[k], data);
    EXPECT_EQ(table.rows[k], "expert " + std::to_string(experts[k] + 1));
    EXPECT_NEAR(table.values[k][0], wanted[0], 1e-12) << k;
    EXPECT_NEAR(table.values[k][1], wanted[1], 1e-12) << k;
    EXPECT_NEAR(table.values[k][2], norm_by_loops(model, experts[k]), 1e-6) << k;
  }
}

TEST(Proficiency, IsTheFractionOfExamplesWhosePatternIsSelectedWithAFullGate) {
  const auto model = pattern_model();
  expect_table(*model, {0, 1, 2, 3, 4, 5});
  model->moe->keep_experts({0, 2, 5});
  expect_table(*model, {0, 2, 5});
}

TEST(Proficiency, GatesOfEqualLogitsAreFull) {
  const auto model = pattern_model();
  const torch::NoGradGuard no_grad;
  model->moe->router->weight.fill_(0.1);
  expect_table(*model, {0, 1, 2, 3, 4, 5});
}

/// Routers that select either pattern or none, with norms that are known.
std::shared_ptr<PatternMoE> made_routers() {
  const auto model = pattern_model();
  const torch::NoGradGuard no_grad;
  at::Tensor w = model->moe->router->weight;
  w.zero_();
  w.select(1, 5).fill_(0.02);  // Idle ones select another pattern.
  w[0][0] = 3.0;               // sign +1 and o1: proficient
  w[1][0] = 2.0;
  w[2][1] = 0.5;  // sign +1, but it selects o2
  w[4][1] = 4.0;  // sign -1 and o2: proficient
  return model;
}

TEST(Proficiency, SeparationIsOfTheSmallestProficientNormOverTheLargestOther) {
  const auto examples = example_data();
  const auto numbers = [&](const std::shared_ptr<PatternMoE>& model) {
    return measured("proficiency", *model, examples).numbers;
  };
  auto model = made_routers();
  const auto norm = [&](int64_t expert) { return norm_by_loops(*model, expert); };
  EXPECT_NEAR(numbers(model).at("separation"), norm(1) / norm(2), 1e-5);
  EXPECT_NEAR(numbers(model).at("separation_from_idle"), norm(1) / norm(3), 1e-4);
  model->moe->keep_experts({0, 2, 3, 4});
  EXPECT_NEAR(numbers(model).at("separation"), norm(0) / norm(2), 1e-5);
  // Nothing is separated without experts of either kind.
  model = made_routers();
  model->moe->keep_experts({2, 3});
  EXPECT_EQ(numbers(model).at("separation"), 0.0);
  model = made_routers();
  model->moe->keep_experts({0, 4});
  EXPECT_EQ(numbers(model).at("separation"), 0.0);
  EXPECT_EQ(numbers(model).at("separation_from_idle"), 0.0);
}

TEST(Proficiency, IsOfNetworksOfPatternsOnly) {
  const auto examples = example_data();
  const DataSplits splits = {{"train", examples}, {"test", examples}};
  EXPECT_EQ(probes().at("proficiency").metrics(*pattern_model(), splits).size(), 3U);
  const auto other = report_test::cluster_network();
  EXPECT_TRUE(probes().at("proficiency").metrics(*other, splits).empty());
}

}  // namespace
}  // namespace moesaic
