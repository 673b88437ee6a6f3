// SPDX-License-Identifier: Apache-2.0
// What tests of a kind of experts share.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <vector>

#include "moesaic/nn/moe_layer.h"
#include "moesaic/ops/route.h"
#include "support/tensors.h"

namespace moesaic::experts_test {

inline constexpr int64_t kTokens = 9, kExperts = 3;

/// Two of three experts for each token, with room for few.
inline Routing small_routing() {
  return route(randn({kTokens, kExperts}, 2),
               {.k = 2, .capacity = {.factor = 0.5, .multiple_of = 1}});
}

inline void randomise(torch::nn::Module& experts) {
  const torch::NoGradGuard no_grad;
  experts.to(torch::kDouble);
  uint64_t seed = 10;
  for (at::Tensor& parameter : experts.parameters()) {
    parameter.copy_(randn(parameter.sizes().vec(), ++seed) * 0.5);
  }
}

/// Sum over experts of weight times what `output` says of a token and an expert, by a loop over
/// both.
template <class Output>
at::Tensor by_loops(const at::Tensor& weight_TK, const Output& output) {
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < weight_TK.size(0); ++t) {
    at::Tensor sum = torch::zeros_like(output(t, 0));
    for (int64_t e = 0; e < weight_TK.size(1); ++e) {
      const auto weight = weight_TK[t][e].item<double>();
      if (weight != 0.0) sum = sum + weight * output(t, e);
    }
    rows.push_back(sum);
  }
  return torch::stack(rows);
}

inline double norm_of(const at::Tensor& values) {
  const at::Tensor flat = values.detach().to(torch::kDouble).flatten().contiguous();
  double sum = 0.0;
  for (int64_t i = 0; i < flat.numel(); ++i) {
    sum += flat.const_data_ptr<double>()[i] * flat.const_data_ptr<double>()[i];
  }
  return std::sqrt(sum);
}

/// Mean norm of the columns of [d, J].
inline double mean_column_norm(const at::Tensor& w_dJ) {
  double sum = 0.0;
  for (int64_t j = 0; j < w_dJ.size(1); ++j) sum += norm_of(w_dJ.select(1, j));
  return sum / static_cast<double>(w_dJ.size(1));
}

inline double magnitude(const nn::Experts& experts, int64_t slot) {
  return nn::neuron_magnitude(experts.matrices(slot, nn::read_parameter));
}

/// Two experts of three, with the outputs that they had and those of the gone one missing.
inline void check_keep(nn::Experts& experts, const at::Tensor& x) {
  const at::Tensor logits = randn({kTokens, kExperts}, 2);
  const Routing all = route(logits, {.k = 1});
  const at::Tensor before = nn::mixture(experts, x, all, {}).y_To.detach();
  const std::array norms = {magnitude(experts, 0), magnitude(experts, 2)};
  experts.keep({0, 2});
  EXPECT_EQ(experts.num_experts(), 2);
  const Routing left = route(logits, {.k = 1, .kept = {0, 2}});
  const at::Tensor after = nn::mixture(experts, x, left, {}).y_To;
  const at::Tensor lost = all.choice.squeeze(1).eq(1).view({-1, 1});
  ASSERT_GT(lost.sum().item<int64_t>(), 0);
  expect_close(after, before.masked_fill(lost, 0.0), 1e-12);
  EXPECT_EQ((std::array{magnitude(experts, 0), magnitude(experts, 1)}), norms);
  after.sum().backward();  // what is left has gradients of its own size
  for (const at::Tensor& parameter : experts.parameters()) {
    if (!parameter.grad().defined()) continue;
    EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
  }
}

}  // namespace moesaic::experts_test
