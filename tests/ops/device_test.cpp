// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/device.h"

#include "base/support.h"
#include "moesaic/ops/route.h"
#include "ops/cuda/switchable.h"
#include "ops/route_arguments.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using test::ScopedEnv;
using test::usage_of;

TEST(CudaOff, IsReadAtEveryCall) {
  const ScopedEnv nothing("MOESAIC_CUDA_OFF", std::nullopt);
  EXPECT_TRUE(disabled_cuda_features().empty());
  {
    const ScopedEnv some("MOESAIC_CUDA_OFF", "combine,grouped_mm");
    EXPECT_TRUE(is_cuda_feature_disabled("combine") && is_cuda_feature_disabled(kGroupedMm));
    EXPECT_FALSE(is_cuda_feature_disabled("dispatch"));
  }
  EXPECT_FALSE(is_cuda_feature_disabled("combine"));
}

TEST(CudaOff, AnUnknownPartIsRefusedWithTheNearest) {
  const ScopedEnv asked("MOESAIC_CUDA_OFF", "combine,grouped_m");
  EXPECT_EQ(usage_of([] { is_cuda_feature_disabled("combine"); }),
            "MOESAIC_CUDA_OFF: unknown feature 'grouped_m'; did you mean 'grouped_mm'?");
}

at::Tensor lying_combine(const at::Tensor& rows, const at::Tensor&, const at::Tensor& token_offsets,
                         const at::Tensor&, const ops::OptionalTensor&,
                         const ops::OptionalTensor&) {
  return torch::full({token_offsets.size(0) - 1, rows.size(1)}, -7.0, rows.options());
}
ops::ChoiceTensors lying_choice(const at::Tensor&, const RouteOptions&) {
  return {};
}

TEST(Switchable, AnOperatorThatIsOffIsTheCpus) {
  const at::Tensor rows = randn({3, 4}, 1), gate = randn({3}, 2);
  const at::Tensor token_offsets = torch::tensor({0, 2, 3}, torch::kInt);
  const at::Tensor token_row = torch::tensor({0, 2, 1}, torch::kInt);
  const auto kernel = ops::Switchable<ops::CombineOperator, lying_combine>::run;
  {
    const ScopedEnv nothing("MOESAIC_CUDA_OFF", std::nullopt);
    EXPECT_EQ(kernel(rows, gate, token_offsets, token_row, {}, {}).sum().item<double>(), -7.0 * 8);
  }
  const ScopedEnv off("MOESAIC_CUDA_OFF", "combine");
  const at::Tensor y = kernel(rows, gate, token_offsets, token_row, {}, {});
  EXPECT_TRUE(torch::allclose(y[0], gate[0] * rows[0] + gate[2] * rows[2]));
  EXPECT_TRUE(torch::allclose(y[1], gate[1] * rows[1]));
  const at::Tensor offsets = torch::tensor({0, 1, 3}, torch::kInt), bias = randn({2, 4}, 3);
  const at::Tensor biased = kernel(rows, gate, token_offsets, token_row, offsets, bias);
  EXPECT_TRUE(torch::allclose(biased[1], gate[1] * (rows[1] + bias[1])));
}

TEST(Switchable, OptionsReachTheCpuAsTheyAre) {
  const ScopedEnv off("MOESAIC_CUDA_OFF", "route_token_choice");
  const at::Tensor logits = randn({20, 5}, 3, torch::kFloat);
  const RouteOptions options{.k = 2, .capacity = {.factor = 0.7}, .kept = {1, 3}};
  constexpr auto kernel =
      ops::Switchable<ops::TokenChoiceOperator, ops::TokenChoiceOperator::run<lying_choice>>::run;
  const auto found = std::apply([&](const auto&... packed) { return kernel(logits, packed...); },
                                ops::TokenChoicePacking::pack(options));
  const Routing wanted = route(logits, options);
  EXPECT_TRUE(torch::equal(std::get<0>(found), wanted.offsets));
  EXPECT_TRUE(torch::equal(std::get<5>(found), wanted.choice));
}

}  // namespace
}  // namespace moesaic
