// SPDX-License-Identifier: Apache-2.0
// Experts against plain loops in float64.
#include "moesaic/nn/experts.h"

#include "moesaic/nn/init.h"
#include "moesaic/nn/mlp_experts.h"
#include "nn/experts_fixture.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using namespace experts_test;  // NOLINT(google-build-using-namespace): the fixture of such tests

TEST(Experts, SplitAnyRowsAndLeaveZerosBehindThem) {
  Routing routing;
  routing.offsets = torch::tensor({0, 2, 2, 3}, torch::kInt);
  const at::Tensor rows = torch::arange(8, torch::kDouble).view({4, 2});
  std::vector<int64_t> sizes;
  const nn::ExpertRows found =
      nn::for_each_expert(rows, routing, [&](int64_t slot, const at::Tensor& own) {
        sizes.push_back(own.size(0));
        if (own.size(0) == 0) return nn::ExpertRows{};
        return nn::ExpertRows{own * static_cast<double>(slot + 1)};
      });
  EXPECT_EQ(sizes, (std::vector<int64_t>{2, 0, 1}));
  const at::Tensor wanted =
      torch::tensor({0.0, 1.0, 2.0, 3.0, 12.0, 15.0, 0.0, 0.0}, torch::kDouble).view({4, 2});
  EXPECT_TRUE(torch::equal(found.outputs, wanted));
  EXPECT_FALSE(found.embeddings.defined());
}

TEST(MlpExperts, AreTwoLayersByLoops) {
  for (const bool bfloat16 : {false, true}) {
    nn::MlpExperts experts(
        nn::MlpExpertsOptions{
            .num_experts = kExperts, .width = 4, .hidden = 5, .bfloat16 = bfloat16},
        nn::make_generator(1));
    randomise(*experts);
    const at::Tensor x = randn({kTokens, 4}, 3);
    const Routing routing = small_routing();
    const at::Tensor wanted = by_loops(combine_weights(routing), [&](int64_t t, int64_t e) {
      const at::Tensor hidden = at::gelu(experts->w1[e].t().mv(x[t]) + experts->b1[e], "tanh");
      return experts->w2[e].t().mv(hidden) + experts->b2[e];
    });
    expect_close(experts->forward(x, routing, {}).y_To, wanted, bfloat16 ? 2e-2 : 1e-9);
  }
}

TEST(MlpExperts, CountWhatTheyCostAndWeigh) {
  nn::MlpExperts experts(nn::MlpExpertsOptions{.num_experts = kExperts, .width = 4, .hidden = 5},
                         nn::make_generator(1));
  randomise(*experts);
  EXPECT_EQ(experts->flops_per_row(), 2.0 * (4 * 5 + 5 * 4));
  for (int64_t e = 0; e < kExperts; ++e) {
    EXPECT_NEAR(magnitude(*experts, e), mean_column_norm(experts->w1[e]), 1e-12);
  }
  check_keep(*experts, randn({kTokens, 4}, 3));
  EXPECT_EQ(experts->flops_per_row(), 2.0 * (4 * 5 + 5 * 4));
}

}  // namespace
}  // namespace moesaic
