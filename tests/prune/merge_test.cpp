// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/plan.h"

#include "base/support.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/nn/mlp_experts.h"
#include "moesaic/nn/script.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "prune/plan_networks.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using Ids = std::vector<int64_t>;

MoEBlock block_of(int64_t experts, int64_t members = 1) {
  nn::MoELayerOptions options{
      .width = 2, .hidden = 3, .num_experts = experts, .num_members = members};
  options.rule = RouteOptions{.k = 2};
  return {.block = 0, .layer = nn::MoELayer(options, 3)};
}

at::Tensor numbers(const std::vector<double>& values) {
  return torch::tensor(values, at::kDouble);
}

TEST(Merging, OfTwoExpertsIsTheirAverageForAllTokens) {
  const torch::NoGradGuard no_grad;
  MoEBlock block = block_of(2);
  auto* experts = block.layer->experts->as<nn::MlpExperts>();
  const at::Tensor w1 = experts->w1.clone(), b2 = experts->b2.clone();
  const PruneLayerPlan plan{.block = 0,
                            .num_experts = 2,
                            .kept = {1},
                            .means_Eo = at::ones({2, 2}, at::kDouble),
                            .rows_E = numbers({3, 1})};
  const MergePlan merging = plan_merge(block, plan);
  EXPECT_EQ(merging.into, (Ids{1, 1}));
  block.layer->merge_experts(plan.kept, merging.into, merging.weights_PP);
  ASSERT_EQ(experts->num_experts(), 1);
  testing::expect_close(experts->w1[0], 0.75 * w1[0] + 0.25 * w1[1], 1e-6);
  testing::expect_close(experts->b2[0], 0.75 * b2[0] + 0.25 * b2[1], 1e-6);
  // Both experts are selected, and the gates of a softmax over both sum to 1.
  const at::Tensor x_Td = testing::randn({5, 2}, 4, torch::kFloat);
  const at::Tensor hidden = at::gelu(x_Td.mm(experts->w1[0]) + experts->b1[0], "tanh");
  const nn::MoEOutput out = block.layer->forward(x_Td);
  testing::expect_close(out.y_Td, hidden.mm(experts->w2[0]) + experts->b2[0], 1e-5);
  EXPECT_EQ(out.routing.offsets[1].item<int64_t>(), 5) << "a token is computed once";
}

TEST(Merging, GoesToTheMostSimilarExpertOfTheGroup) {
  const MoEBlock one = block_of(4), two = block_of(4, 2);
  PruneLayerPlan plan{.block = 0, .num_experts = 4, .kept = {1, 2}};
  // 0 points as 2 does, and 3 away from 1.
  plan.means_Eo = numbers({3, 3, 1, 0, 1, 1, -1, 0}).view({4, 2});
  plan.rows_E = numbers({0, 2, 6, 2});
  const MergePlan merging = plan_merge(one, plan);
  EXPECT_EQ(merging.into, (Ids{2, 1, 2, 2}));
  testing::expect_close(merging.weights_PP[1], numbers({0, 1, 0, 0}), 1e-12);
  testing::expect_close(merging.weights_PP[2], numbers({0, 0, 0.75, 0.25}), 1e-12);
  EXPECT_EQ(plan_merge(two, plan).into, (Ids{1, 1, 2, 2}));
}

TEST(Merging, WithoutRowsKeepsTheWeightsAndFollowsEarlierMerging) {
  MoEBlock block = block_of(4);
  PruneLayerPlan plan{.block = 0, .num_experts = 4, .kept = {0, 1, 2}};
  plan.means_Eo = numbers({1, 0, 0, 1, 0, 1, 0, 1}).view({4, 2});
  plan.rows_E = at::zeros({4}, at::kDouble);
  const MergePlan first = plan_merge(block, plan);
  EXPECT_EQ(first.into, (Ids{0, 1, 2, 1})) << "the lower index wins a tie";
  testing::expect_close(first.weights_PP[1], numbers({0, 1, 0, 0}), 1e-12);
  block.layer->merge_experts(plan.kept, first.into, first.weights_PP);
  plan.kept = {0, 2};
  EXPECT_EQ(plan_merge(block, plan).into, (Ids{0, 2, 2, 2}));
}

TEST(Merging, OfACheckpointIsThatInMemoryAndIsKept) {
  const test::TempDir folder;
  const auto model = small_vmoe();
  model->eval();
  save_checkpoint(folder / "whole", {.config = {{"model", model->config()}, {"run", nullptr}},
                                     .model = state_of(*model)});
  PruneCheckpointOptions options{
      .finetuned = folder / "whole",
      .out = folder / "merged",
      .prune = {.criterion = "output-error", .keep = KeepSpec::count(3), .replace = kMerge},
      .calibrate = use_on_images};
  const PruneCheckpointResult result = prune_checkpoint(options);
  apply_plan(*model, result.plan);
  const auto loaded = load_model(options.out);
  const at::Tensor images = small_images(3);
  EXPECT_TRUE(at::equal(run(*loaded, images).logits, run(*model, images).logits));
  EXPECT_EQ(loaded->moe_blocks()[0].layer->merged_into, model->moe_blocks()[0].layer->merged_into);
  EXPECT_LT(result.after.num_parameters, result.before.num_parameters);
  EXPECT_EQ(result.after.flops, result.before.flops) << "tokens keep their number of experts";
  for (const RoutingRecord& record : run(*loaded, images).routings) {
    testing::expect_close(
        combine_weights(record.routing).sum(1),
        combine_weights(loaded->moe_blocks()[record.block / 2].layer->router->route_to_all(record))
            .sum(1),
        1e-6);
  }
  torch::jit::Module script = *loaded->torchscript(script::Context{});
  testing::expect_close(script.forward({images}).toTensor(), run(*loaded, images).logits, 1e-5);
  options.finetuned = options.out;
  options.out = folder / "again";
  options.prune.keep = KeepSpec::count(2);
  for (const char* other : {kReplaceByNothing, kReplaceByMean}) {
    options.prune.replace = other;
    EXPECT_THAT(test::usage_of([&] { prune_checkpoint(options); }),
                HasSubstr("earlier pruning merged experts; choose the replacement 'merge'"));
  }
  options.prune.replace = kMerge;
  prune_checkpoint(options);
  EXPECT_EQ(load_model(options.out)->moe_blocks()[1].layer->experts->num_experts(), 2);
}

TEST(Merging, GivesTheUseOfMergedExpertsToTheKeptOne) {
  const auto model = small_vmoe();
  model->eval();
  nn::MoELayer layer = model->moe_blocks()[0].layer;
  layer->merge_experts({2}, Ids(6, 2), at::full({6, 6}, 1.0 / 6, at::kDouble));
  const ExpertStatisticsMeter meter(*model);
  const RoutingRecord record = run(*model, small_images(4)).routings[0];
  const LayerStatistics& use = meter.statistics().at(1);
  const auto tokens = static_cast<double>(use.tokens);
  testing::expect_close(use.selections, numbers({0, 0, tokens, 0, 0, 0}), 1e-12);
  const auto gates = combine_weights(record.routing).sum().item<double>();
  testing::expect_close(use.first_gates, numbers({0, 0, gates, 0, 0, 0}), 1e-4);
}

TEST(Merging, IsRefusedWhereTokensAreRerouted) {
  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.router.pruned = PrunedSelection::reroute;
  EXPECT_THAT(
      replacement_problem(*small_vmoe(config), kMerge),
      HasSubstr("so 'merge' cannot replace their outputs; choose the replacement 'reroute'"));
}

}  // namespace
}  // namespace moesaic
