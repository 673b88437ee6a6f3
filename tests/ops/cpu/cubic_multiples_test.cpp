// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/cubic_multiples.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "support/tensors.h"

namespace moesaic::ops {
namespace {

using testing::expect_close;
using testing::randn;

at::Tensor ints(const std::vector<int32_t>& values) {
  return torch::tensor(values, torch::kInt);
}

/// Three tokens of two patches, four rows of three experts; two directions.
struct Multiples {
  at::Tensor offsets = ints({0, 2, 2, 3}), token = ints({1, 2, 0, 2});
  at::Tensor which = ints({1, -2, 0, 0, -1, 1}).view({3, 2});
  at::Tensor scale = torch::tensor({0.5, 0.0, -2.0, 0.25, 0.0, 3.0}).view({3, 2});

  MultiplesRead read() const { return {offsets, token, which, scale}; }
};

/// The definition, patch by patch and filter by filter; what autograd differentiates.
at::Tensor plain_cubes(const Multiples& m, const at::Tensor& met, const at::Tensor& b,
                       int64_t outputs) {
  const int64_t each = met.size(2) / outputs;
  std::vector<at::Tensor> rows;
  for (int64_t e = 0; e < met.size(0); ++e) {
    for (int r = m.offsets[e].item<int>(); r < m.offsets[e + 1].item<int>(); ++r) {
      at::Tensor sum = torch::zeros({outputs}, met.options());
      const int t = m.token[r].item<int>();
      for (int64_t p = 0; p < m.which.size(1); ++p) {
        const int k = m.which[t][p].item<int>();
        if (k < 0) continue;
        const at::Tensor seen = m.scale[t][p].to(met.scalar_type()) * met[e][k] + b[e];
        sum = sum + seen.pow(3).view({outputs, each}).sum(1);
      }
      rows.push_back(sum);
    }
  }
  rows.push_back(torch::zeros({outputs}, met.options()));  // past the last offset
  return torch::stack(rows);
}

TEST(CubicMultiples, AreTheSumsOfTheirCubesAndSoAreTheirGradients) {
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    for (const int64_t outputs : {1, 2, 3}) {
      Multiples m;
      m.scale = m.scale.to(type);
      at::Tensor met = randn({3, 2, 6}, 1, type), b = randn({3, 6}, 2, type);
      const at::Tensor wide = met.to(torch::kDouble).requires_grad_();
      const at::Tensor wide_b = b.to(torch::kDouble).requires_grad_();
      const at::Tensor wanted = plain_cubes(m, wide, wide_b, outputs);
      const double tolerance = type == torch::kFloat ? 1e-6 : 1e-14;
      expect_close(cubic_multiples(m.read(), met, b, outputs), wanted.detach(), tolerance);
      const at::Tensor grad = randn({4, outputs}, 3, type);
      wanted.backward(grad.to(torch::kDouble));
      const auto [grad_met, grad_b] = cubic_multiples_backward(grad, m.read(), met, b);
      expect_close(grad_met, wide.grad(), tolerance);
      expect_close(grad_b, wide_b.grad(), tolerance);
    }
  }
}

TEST(CubicMultiples, RowsOfTheRestAreThoseOfTheirRowsExperts) {
  const Multiples m;
  const RestRows rest = rest_rows(m.offsets, m.token, m.which);
  EXPECT_TRUE(torch::equal(rest.offsets, ints({0, 1, 1, 2})));
  EXPECT_TRUE(torch::equal(rest.token, ints({0, 1})));
  EXPECT_TRUE(torch::equal(rest.row, ints({1, 2})));
}

}  // namespace
}  // namespace moesaic::ops
