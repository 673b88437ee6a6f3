// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/grouped_mlp.h"

#include "moesaic/ops/autocast.h"
#include "ops/mlp_operators.h"
#include "support/poison.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;

/// Experts of 5, 0 and 9 rows, and 2 rows that none has.
Tensor some_offsets() {
  return torch::tensor({0, 5, 5, 14}, torch::kInt);
}

Tensor plain(const std::vector<Tensor>& in) {
  const Tensor offsets = some_offsets();
  Tensor y = torch::zeros({16, in[1].size(2)}, in[0].options());
  const auto* begins = offsets.const_data_ptr<int32_t>();
  for (int64_t e = 0; e < 3; ++e) {
    for (int32_t r = begins[e]; r < begins[e + 1]; ++r) {
      y = y.index_put({torch::tensor(r)}, torch::mv(in[1][e].t(), in[0][r]) + in[2][e]);
    }
  }
  return y;
}

TEST(GroupedLinear, AppliesEachExpertToItsRows) {
  const std::vector<Tensor> in = {randn({16, 8}, 1), randn({3, 8, 16}, 2), randn({3, 16}, 3)};
  const auto f = [](const std::vector<Tensor>& x) {
    return grouped_linear(x[0], some_offsets(), x[1], x[2]);
  };
  expect_close(f(in), plain(in), 1e-12);
  expect_gradients(f, {in[0].clone().requires_grad_(true), in[1].clone().requires_grad_(true),
                       in[2].clone().requires_grad_(true)});
}

// What the memory held would show in unused rows and in gradients of the expert without rows.
TEST(GroupedLinear, OneGroupedProductComputesTheSame) {
  const testing::Poison poison;
  using Way = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const Tensor&);
  const auto run = [](Way way) {
    std::vector<Tensor> in;
    for (const auto& [shape, seed] :
         {std::pair<std::vector<int64_t>, uint64_t>{{16, 8}, 1}, {{3, 8, 16}, 2}, {{3, 16}, 3}}) {
      in.push_back(randn(shape, seed, torch::kBFloat16).requires_grad_(true));
    }
    const Tensor y = way(in[0], some_offsets(), in[1], in[2]);
    // A second layer reads the unused rows' gradients, which a grouped GEMM does not write.
    const Tensor w = in[1].transpose(1, 2).contiguous(), b = in[2].slice(1, 0, 8).contiguous();
    (way(torch::gelu(y), some_offsets(), w, b) * randn({16, 8}, 4, torch::kBFloat16))
        .sum()
        .backward();
    std::vector<Tensor> out = {y.detach()};
    for (const Tensor& tensor : in) out.push_back(tensor.grad());
    out[1] = out[1].slice(0, 0, 14);  // Nobody reads the gradients of unused rows.
    return out;
  };
  const auto wanted = run(ops::linear_by_expert), found = run(ops::linear_by_grouped_mm);
  for (size_t i = 0; i < wanted.size(); ++i) {
    SCOPED_TRACE(i);
    const Tensor a = found[i].to(torch::kDouble), b = wanted[i].to(torch::kDouble);
    expect_close(a / b.abs().max(), b / b.abs().max(), 2e-2);
  }
  EXPECT_EQ(found[2][1].abs().max().item<float>(), 0.0F);
  EXPECT_EQ(found[0].slice(0, 14).abs().max().item<float>(), 0.0F);
}

TEST(GroupedLinear, FollowsAutocast) {
  const Tensor x = randn({16, 8}, 1, torch::kFloat), w = randn({3, 8, 16}, 2, torch::kFloat),
               b = randn({3, 16}, 3, torch::kFloat);
  const Tensor exact = grouped_linear(x, some_offsets(), w, b);
  EXPECT_EQ(exact.scalar_type(), torch::kFloat);
  const Autocast autocast("bfloat16", torch::kCPU);
  const Tensor low = grouped_linear(x, some_offsets(), w, b);
  EXPECT_EQ(low.scalar_type(), torch::kBFloat16);
  expect_close(low.to(torch::kFloat), exact, 2e-2);
}

}  // namespace
}  // namespace moesaic
