// SPDX-License-Identifier: Apache-2.0
#include "ops/mlp_operators.h"

#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/route.h"
#include "support/tensors.h"

namespace moesaic::ops {
namespace {

using at::Tensor;

constexpr int64_t kTokens = 30, kWidth = 6, kHidden = 9, kExperts = 4;

/// x, logits, w1, b1, w2, b2 in float64.
std::vector<Tensor> some_leaves(int64_t tokens) {
  return {randn({tokens, kWidth}, 1),
          randn({tokens, kExperts}, 2),
          randn({kExperts, kWidth, kHidden}, 3),
          randn({kExperts, kHidden}, 4),
          randn({kExperts, kHidden, kWidth}, 5),
          randn({kExperts, kWidth}, 6)};
}

/// Returns the layer's output, and its gradients where there are to be some. The second expert is
/// not computed, so tokens have no, one or two rows.
std::vector<Tensor> layer(bool in_combine, std::vector<Tensor> leaves, at::ScalarType type) {
  for (Tensor& leaf : leaves) leaf = leaf.to(type).detach().requires_grad_(true);
  const Routing routing = route(leaves[1], {.k = 2, .kept = {0, 2, 3}});
  ExpertWeights weights{leaves[2], leaves[3], leaves[4], leaves[5]};
  const auto kept = torch::tensor({0, 2, 3});
  for (Tensor* weight : {&weights.w1, &weights.b1, &weights.w2, &weights.b2}) {
    *weight = weight->index_select(0, kept);
  }
  const Tensor rows = dispatch(leaves[0], routing);
  const Tensor y =
      in_combine
          ? combine_with_bias(
                grouped_mlp_before_bias(rows, routing.offsets, weights, Activation::gelu_tanh),
                weights.b2.detach(), routing)
          : combine(grouped_mlp(rows, routing.offsets, weights, Activation::gelu_tanh), routing);
  y.backward(randn({y.size(0), kWidth}, 7).to(type));
  std::vector<Tensor> out = {y.detach()};
  for (const Tensor& leaf : leaves) out.push_back(leaf.grad());
  return out;
}

TEST(BiasInCombine, OutputAndGradientsAreThoseOfTheBiasBeforeIt) {
  for (const auto& [type, tolerance] : {std::pair{torch::kDouble, 1e-13}, {torch::kFloat, 1e-5}}) {
    const auto wanted = layer(false, some_leaves(kTokens), type);
    const auto found = layer(true, some_leaves(kTokens), type);
    for (size_t i = 0; i < wanted.size(); ++i) expect_close(found[i], wanted[i], tolerance);
  }
}

TEST(BiasInCombine, GradientsEqualFiniteDifferences) {
  std::vector<Tensor> leaves = some_leaves(5);
  for (Tensor& leaf : leaves) leaf.set_requires_grad(true);
  expect_gradients(
      [](const auto& in) {
        const Routing routing = route(in[1], {.k = 2});
        const Tensor rows = grouped_mlp_before_bias(dispatch(in[0], routing), routing.offsets,
                                                    {in[2], in[3], in[4], in[5]}, Activation::tanh);
        return combine_with_bias(rows, in[5].detach(), routing);
      },
      leaves);
}

TEST(BiasInCombine, RefusesBiasesThatAreNotTheExperts) {
  const Routing routing = route(randn({8, 3}, 1), {.k = 1});
  const Tensor rows = randn({routing.max_rows(), 5}, 2);
  EXPECT_NO_THROW(combine_with_bias(rows, randn({3, 5}, 3), routing));
  EXPECT_THROW(combine_with_bias(rows, randn({2, 5}, 3), routing), Error);
  EXPECT_THROW(combine_with_bias(rows, randn({3, 4}, 3), routing), Error);
  EXPECT_THROW(combine_with_bias(rows, randn({3, 5}, 3).to(torch::kFloat), routing), Error);
  // Its gradient would be missing without a word.
  EXPECT_THROW(combine_with_bias(rows, randn({3, 5}, 3).set_requires_grad(true), routing), Error);
}

}  // namespace
}  // namespace moesaic::ops
