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

/// A kind that the library does not know: an expert multiplies its inputs by a number.
class Factors : public nn::Experts {
 public:
  explicit Factors(int64_t experts) {
    factor_K = register_parameter("factor", torch::arange(1, experts + 1, torch::kDouble));
  }

  nn::ExpertRows compute(const at::Tensor& rows_APd, const Routing& routing,
                         const at::Generator&) override {
    return nn::for_each_expert(rows_APd, routing, [&](int64_t slot, const at::Tensor& own_RPd) {
      return nn::ExpertRows{own_RPd.flatten(1) * factor_K[slot]};
    });
  }
  /// Multiplies a token by the sum of its gates times numbers.
  std::optional<nn::ExpertsOutput> fused(const at::Tensor& x_TPd, const Routing& routing,
                                         const at::Generator&) override {
    if (is_training()) return std::nullopt;
    ++num_fused;
    const at::Tensor factor_T1 = combine_weights(routing).mm(factor_K.unsqueeze(1));
    return nn::ExpertsOutput{x_TPd.flatten(1) * factor_T1, {}};
  }
  int64_t num_experts() const override { return factor_K.size(0); }
  int64_t num_outputs() const override { return 6; }
  double flops_per_row() const override { return 6.0; }
  nn::ExpertMatrices matrices(int64_t, const nn::ParameterReader&) const override { return {}; }

  at::Tensor factor_K;
  int num_fused = 0;
};

TEST(Experts, OfAnUnknownKindRunInALayerByRowsOrFused) {
  const auto experts = std::make_shared<Factors>(kExperts);
  nn::MoELayer layer(
      nn::RouterOptions{.width = 4, .num_experts = kExperts, .rule = RouteOptions{.k = 2}}, experts,
      nn::make_generator(1));
  layer->to(torch::kDouble);
  const at::Tensor x_Td = randn({kTokens, 4}, 2), x_TPd = randn({kTokens, 2, 3}, 3);
  const at::Tensor by_rows = layer->forward(x_Td, x_TPd, {}).y_Td;
  EXPECT_EQ(experts->num_fused, 0);
  by_rows.sum().backward();
  EXPECT_EQ(experts->factor_K.grad().sizes(), experts->factor_K.sizes());
  layer->eval();
  expect_close(layer->forward(x_Td, x_TPd, {}).y_Td, by_rows, 1e-12);
  EXPECT_EQ(experts->num_fused, 1);
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
    const at::Tensor found = nn::mixture(*experts, x, routing, {}).y_To;
    expect_close(found, wanted, bfloat16 ? 2e-2 : 1e-9);
    const nn::ExpertRows rows = nn::expert_rows(*experts, x, routing, {});
    expect_close(nn::combine_rows(rows, routing).y_To, found, 1e-12);
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
