// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <cmath>

#include "papers/pruning_theory/pattern_fixture.h"

namespace moesaic {
namespace {

using report_test::pattern_data;
using report_test::pattern_model;

/// Two examples of eight tokens each: o1 and o2, each beside seven others.
std::shared_ptr<const Dataset> two_examples() {
  const at::Tensor tokens = torch::tensor({{0, 3, 4, 5, 6, 7, 8, 9}, {1, 3, 4, 5, 6, 7, 8, 9}});
  return pattern_data(tokens.to(torch::kFloat), torch::tensor({0, 1}));
}

/// Experts of which before training 0 and 4 select their class's pattern, and no other does.
std::shared_ptr<PatternMoE> start() {
  const auto model = pattern_model();
  const torch::NoGradGuard no_grad;
  at::Tensor router = model->moe->router->weight;
  router.zero_();
  router.slice(1, 3, 6).fill_(0.1);  // All others select patterns 3, 4 and 5.
  router[0][0] = router[4][1] = 0.2;
  model->experts->w.zero_();
  model->experts->w[2][7][0] = -0.5;  // C2
  return model;
}

std::map<std::string, double> numbers(Model& now) {
  const c10::InferenceMode inference;
  const DataSplits data = {{"train", two_examples()}, {"test", two_examples()}};
  ProbedModel subject(now, 9, data, {}, start);
  Measurement found;
  probes().at("lemmas").measure(subject, found);
  return found.numbers;
}

TEST(Lemmas, AreOfTheExpertFarthestFromTheClaim) {
  const auto now = start();
  const at::Tensor router = now->moe->router->weight.detach(), w = now->experts->w.detach();
  router[0][0] = 3.0;
  router[4][1] = 0.5;
  router[3][11] = 0.25;
  w[0][0].fill_(2.0);  // All five neurons are along o1.
  w[4][1].slice(0, 0, 2).fill_(1.0);
  w[4][6].slice(0, 2, 5).fill_(1.0);
  const std::map<std::string, double> found = numbers(*now);
  const double log_l = std::log(3.0), root = std::sqrt(log_l), idle = 0.1 * std::sqrt(3.0);
  EXPECT_EQ(found.at("important"), 2.0);
  EXPECT_EQ(found.at("important_p"), 1.0);
  const double gate = std::exp(0.5) / (std::exp(0.5) + 2 * std::exp(0.1));
  EXPECT_NEAR(found.at("important_gate"), gate, 1e-6);
  EXPECT_NEAR(found.at("important_mass"), gate, 1e-6);
  EXPECT_NEAR(found.at("important_along"), 0.4, 1e-12);
  EXPECT_NEAR(found.at("important_component"), 1.0 / (3 * 0.5 * std::sqrt(12.0) * root), 1e-6);
  EXPECT_NEAR(found.at("important_norm"), (std::hypot(0.5, idle) - std::hypot(0.2, idle)) / log_l,
              1e-6);
  EXPECT_EQ(found.at("unimportant_p"), 0.0);
  const double bound = log_l * log_l / std::sqrt(12.0) + 81 * log_l * log_l / 144;
  EXPECT_NEAR(found.at("unimportant_norm"), (std::hypot(0.25, idle) - idle) / bound, 1e-6);
  EXPECT_EQ(found.at("grown"), 1.0);
  EXPECT_EQ(found.at("grown_p"), 1.0);
  EXPECT_NEAR(found.at("grown_gate"), std::exp(3.0) / (std::exp(3.0) + 2 * std::exp(0.1)), 1e-6);
  EXPECT_NEAR(found.at("grown_component"), 2.0 / (6 * 9 * 0.5 * root), 1e-6);
}

TEST(Lemmas, KnowPrunedExpertsByTheirNumbersBeforePruning) {
  const auto now = start();
  now->moe->keep_experts({2, 4});
  const std::map<std::string, double> found = numbers(*now);
  EXPECT_EQ(found.at("important"), 1.0);
  EXPECT_NEAR(found.at("important_norm"), 0.0, 1e-6);
  EXPECT_EQ(found.at("grown"), 0.0);
  EXPECT_FALSE(found.contains("grown_gate"));
}

TEST(Norms, AreThoseOfRoutersAndNeurons) {
  const auto now = start();
  now->moe->keep_experts({0, 2, 4});
  const MeasuredTable table =
      report_test::measured("norms", *now, two_examples()).tables.at("norms");
  EXPECT_EQ(table.columns, (std::vector<std::string>{"expert 1", "expert 3", "expert 5"}));
  EXPECT_NEAR(table.values[0][0], std::sqrt(0.04 + 0.03), 1e-6);
  EXPECT_NEAR(table.values[1][1], 0.1, 1e-6) << "one of five neurons is 0.5";
}

}  // namespace
}  // namespace moesaic
