// SPDX-License-Identifier: Apache-2.0
// Criteria by a layer's gated outputs, against loops over tokens and subsets in float64.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "moesaic/nn/mlp_experts.h"
#include "prune/plan_networks.h"

namespace moesaic {
namespace {

using Ids = std::vector<int64_t>;

/// Returns gate times output of every token and expert of block 1, [T, 6, 12] float64.
at::Tensor gated_outputs(Model& model, const at::Tensor& images) {
  const torch::NoGradGuard no_grad;
  MoEBlock block = model.moe_blocks()[0];
  at::Tensor gated_TEd;
  block.layer->set_observer([&](const RoutingRecord& record, const at::Tensor& x_Td) {
    const auto* experts = block.layer->experts->as<nn::MlpExperts>();
    const at::Tensor weights_TE = combine_weights(record.routing).to(at::kDouble);
    gated_TEd = at::zeros({x_Td.size(0), 6, 12}, at::kDouble);
    const auto in = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };
    for (int64_t e = 0; e < 6; ++e) {
      const at::Tensor hidden =
          at::gelu(in(x_Td).mm(in(experts->w1[e])) + in(experts->b1[e]), "tanh");
      gated_TEd.select(1, e).copy_((hidden.mm(in(experts->w2[e])) + in(experts->b2[e])) *
                                   weights_TE.select(1, e).unsqueeze(1));
    }
  });
  model.eval();
  model.forward(images);
  block.layer->set_observer({});
  return gated_TEd;
}

/// Returns sum_t || sum_{e not in kept} g_e y_e ||^2 over experts [begin, end).
double error_without(const at::Tensor& gated_TEd, int64_t begin, int64_t end, const Ids& kept) {
  at::Tensor lost_Td = at::zeros({gated_TEd.size(0), gated_TEd.size(2)}, at::kDouble);
  for (int64_t e = begin; e < end; ++e) {
    if (!std::ranges::binary_search(kept, e)) lost_Td += gated_TEd.select(1, e);
  }
  return lost_Td.square().sum().item<double>();
}

/// Returns the `count` experts of [begin, end) with the smallest error, of all subsets.
Ids best_of_all(const at::Tensor& gated_TEd, int64_t begin, int64_t end, int64_t count) {
  Ids best;
  double least = std::numeric_limits<double>::infinity();
  for (uint32_t bits = 0; bits < 1U << (end - begin); ++bits) {
    if (std::popcount(bits) != count) continue;
    Ids kept;
    for (int64_t e = begin; e < end; ++e) {
      if ((bits >> (e - begin) & 1U) != 0) kept.push_back(e);
    }
    const double error = error_without(gated_TEd, begin, end, kept);
    if (error >= least) continue;
    least = error;
    best = kept;
  }
  return best;
}

class OutputError : public ::testing::TestWithParam<VMoEConfig> {};

TEST_P(OutputError, EqualsLoopsOverTokensAndSubsets) {
  const torch::NoGradGuard no_grad;
  const auto model = small_vmoe(GetParam());
  const at::Tensor images = small_images(4), gated_TEd = gated_outputs(*model, images);
  const ExpertStatisticsMeter meter(*model);
  model->forward(images);
  const LayerStatistics& use = meter.statistics().at(1);
  const MoEBlock block = model->moe_blocks()[0];
  const ScoreInput input{.finetuned = block, .statistics = &use};
  const auto variances = expert_scores("output-variance", input);
  const auto errors = expert_scores("output-error", input);
  double cross = 0.0;
  for (int64_t e = 0; e < 6; ++e) {
    const at::Tensor own_Td = gated_TEd.select(1, e);
    const at::Tensor centred_Td = own_Td - own_Td.mean(0, /*keepdim=*/true);
    const double variance = centred_Td.square().sum(1).mean().item<double>();
    const double error = own_Td.square().sum(1).mean().item<double>();
    EXPECT_NEAR(variances[static_cast<size_t>(e)], variance, 1e-5 * error);
    EXPECT_NEAR(errors[static_cast<size_t>(e)], error, 1e-5 * error);
    EXPECT_LT(variance, error);
    for (int64_t f = 0; f < 6; ++f) {
      const double product = (own_Td * gated_TEd.select(1, f)).sum().item<double>();
      const double bound =
          own_Td.norm().item<double>() * gated_TEd.select(1, f).norm().item<double>();
      EXPECT_NEAR(use.products_EE[e][f].item<double>(), product, 1e-5 * bound);
      if (e != f) cross += std::abs(product);
    }
  }
  EXPECT_GT(cross, 0.0) << "tokens are to have several experts";
  const int64_t groups = block.num_ranked_groups(), each = 6 / groups;
  for (int64_t count = 2; count < each; ++count) {
    Ids wanted;
    for (int64_t group = 0; group < groups; ++group) {
      const Ids own = best_of_all(gated_TEd, group * each, (group + 1) * each, count);
      wanted.insert(wanted.end(), own.begin(), own.end());
    }
    const ExpertStatistics& all = meter.statistics();
    const PrunePlan plan =
        plan_pruning({.finetuned = *model, .statistics = &all},
                     {.criterion = "output-error", .keep = KeepSpec::count(count)});
    EXPECT_EQ(plan.layers[0].kept, wanted) << count;
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, OutputError,
                         ::testing::Values(small_vmoe_config(), expert_choice_config(),
                                           small_ensemble_config(2)));

/// A Gram matrix of random vectors.
at::Tensor products_of(int64_t experts, uint64_t seed) {
  const at::Tensor vectors = testing::randn({experts, 3}, seed, torch::kFloat).to(at::kDouble);
  return vectors.mm(vectors.t());
}

TEST(BestSubset, CountsWhatWasRemovedBefore) {
  // Experts 0 and 1 cancel each other, so that 1 may follow 0 for nothing.
  const at::Tensor products = at::diag(torch::tensor({4.0, 4.0, 1.0}, at::kDouble));
  products[0][1] = products[1][0] = -4.0;
  EXPECT_EQ(best_subset(products, 0, 3, {0, 1, 2}, 1), (Ids{2}));
  EXPECT_EQ(best_subset(products, 0, 3, {1, 2}, 1), (Ids{2}));
  EXPECT_EQ(best_subset(products, 1, 3, {1, 2}, 1), (Ids{1})) << "0 is of another group";
  EXPECT_EQ(best_subset(products, 0, 3, {0, 1, 2}, 3), (Ids{0, 1, 2}));
}

Ids first_ids(int64_t count) {
  Ids ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST(BestSubset, OfEqualExpertsKeepsTheFirst) {
  EXPECT_EQ(best_subset(at::eye(5, at::kDouble), 0, 5, {0, 1, 2, 3, 4}, 2), (Ids{0, 1}));
  EXPECT_EQ(best_subset(at::eye(24, at::kDouble), 0, 24, first_ids(24), 12), first_ids(12))
      << "2.7 million subsets are not tried";
}

TEST(BestSubset, OfManyExpertsIsGreedy) {
  const int64_t experts = 26;
  const at::Tensor products = products_of(experts, 5);
  const Ids all = first_ids(experts);
  Ids kept = all, removed;
  while (kept.size() > 13) {
    double least = std::numeric_limits<double>::infinity();
    int64_t cheapest = 0;
    for (const int64_t e : kept) {
      double error = 0.0;
      Ids without = removed;
      without.push_back(e);
      for (const int64_t a : without) {
        for (const int64_t b : without) error += products[a][b].item<double>();
      }
      if (error >= least) continue;
      least = error;
      cheapest = e;
    }
    removed.push_back(cheapest);
    std::erase(kept, cheapest);
  }
  EXPECT_EQ(best_subset(products, 0, experts, all, 13), kept);
}

}  // namespace
}  // namespace moesaic
