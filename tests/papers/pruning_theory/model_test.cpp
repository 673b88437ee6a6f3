// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/pruning_theory.h"

#include "moesaic/base/error.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/source.h"
#include "moesaic/nn/init.h"
#include "moesaic/prune/plan.h"
#include "papers/pruning_theory/pattern_fixture.h"
#include "papers/pruning_theory/pattern_sgd.h"
#include "prune/plan_networks.h"
#include "support/matchers.h"
#include "support/models.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;

using report_test::small_patterns;

Tensor some_tokens(int64_t count) {
  return pattern_tokens({.num_patterns = 12, .num_tokens = 8}, "train", 0, count)
      .values_NCHW.flatten(1)
      .unsqueeze(1)
      .unsqueeze(1);
}

/// f of each example before a step, from the step's own account of it.
TEST(PatternMoE, IsTheNetworkThatTheStepTrains) {
  PatternMoE model(small_patterns(), 3);
  const Tensor tokens = some_tokens(40);
  const Tensor logits = model.forward(tokens).logits.detach();
  expect_close(logits.sum(1), torch::zeros({40}), 1e-7);
  const Tensor y = (torch::arange(40).remainder(2) * 2 - 1).to(torch::kFloat);
  const Tensor margin = y * (logits.select(1, 0) - logits.select(1, 1));
  PatternWeights weights{model.moe->router->weight.detach().clone(),
                         model.experts->w.detach().clone(), model.experts->sign.clone()};
  const PatternStep step =
      pattern_sgd_step(weights, {tokens.flatten(1).to(torch::kInt), y}, {.num_selected_tokens = 3});
  EXPECT_NEAR(step.hinge, (1 - margin).clamp_min(0).mean().item<double>(), 1e-6);
  EXPECT_NEAR(step.accuracy, margin.gt(0).to(torch::kDouble).mean().item<double>(), 1e-12);
}

TEST(PatternMoE, PruningRanksTheSignsApart) {
  PatternMoE model(small_patterns(), 3);
  const Tensor router = model.moe->router->weight.detach();
  for (int64_t e = 0; e < 6; ++e) router[e].fill_(e == 1 ? 9 : 6 - e);
  const PrunePlan plan =
      plan_pruning(model, nullptr, "router-magnitude", KeepSpec::fraction(1.0 / 3));
  EXPECT_EQ(plan.layers[0].kept, (std::vector<int64_t>{1, 3}));
  apply_plan(model, plan);
  EXPECT_TRUE(at::equal(model.experts->sign, torch::tensor({1.0F, -1.0F})));
  EXPECT_TRUE(at::equal(testing::rebuilt(model)->forward(some_tokens(5)).logits,
                        model.forward(some_tokens(5)).logits));
}

TEST(PatternMoE, RefusesMoreSelectedTokensThanThereAre) {
  PatternMoEConfig config = small_patterns();
  config.num_selected_tokens = 9;
  EXPECT_THAT(config_problem(config).text, HasSubstr("cannot select 9 of 8 tokens"));
}

TEST(PatternMoE, RefusesAnOddNumberOfExperts) {
  PatternMoEConfig config = small_patterns();
  config.num_experts = 5;
  EXPECT_THAT(
      config_problem(config).text,
      HasSubstr("num_experts 5 must be even, since half of the experts subtract; choose 6"));
  const nn::PatternExperts experts(5, 3, 4, 1.0, nn::make_generator(1));
  EXPECT_TRUE(at::equal(experts->sign, torch::tensor({1.0F, 1.0F, -1.0F, -1.0F, -1.0F})))
      << "pruning ranks experts 0 and 1 apart from the others";
}

TEST(PatternTokens, HaveOnePatternOfTheirClassEach) {
  const PatternTokensConfig config{.num_patterns = 20, .num_tokens = 10};
  const DatasetInputs found = pattern_tokens(config, "train", 1000, 4000);
  const Tensor tokens = found.values_NCHW.flatten(1), telling = tokens.lt(2);
  EXPECT_TRUE(at::equal(telling.sum(1), torch::ones({4000}, torch::kLong)));
  EXPECT_TRUE(at::equal(tokens.masked_select(telling).to(torch::kLong), found.labels_N));
  EXPECT_NEAR(found.labels_N.to(torch::kDouble).mean().item<double>(), 0.5, 0.03);
  const Tensor others = tokens.masked_select(telling.logical_not()).to(torch::kLong);
  const Tensor counts = others.bincount({}, 20).slice(0, 2).to(torch::kDouble);
  EXPECT_LT((counts / 2000 - 1).abs().max().item<double>(), 0.1);
  const Tensor place = telling.to(torch::kFloat).argmax(1).bincount({}, 10).to(torch::kDouble);
  EXPECT_LT((place / 400 - 1).abs().max().item<double>(), 0.25);
  // Example i is the same however many are made.
  EXPECT_TRUE(at::equal(pattern_tokens(config, "train", 1700, 3).values_NCHW,
                        found.values_NCHW.slice(0, 700, 703)));
  EXPECT_FALSE(
      at::equal(pattern_tokens(config, "test", 1000, 4000).values_NCHW, found.values_NCHW));
}

TEST(PatternExperts, HaveNoTorchScript) {
  const nn::PatternExperts experts(2, 3, 4, 1.0, nn::make_generator(1));
  EXPECT_THROW(experts->script_source(), Error);
}

TEST(Patterns, HaveClassesBeforeTheyAreOpened) {
  EXPECT_EQ(DatasetSource("patterns").num_classes(), 2);
}

}  // namespace
}  // namespace moesaic
