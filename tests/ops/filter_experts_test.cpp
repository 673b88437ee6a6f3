// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/filter_experts.h"

#include <cmath>
#include <vector>

#include "moesaic/base/error.h"
#include "ops/activation_reference.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::activation_reference;

struct FilterCase {
  int64_t patches, width, filters, outputs;
};

at::Tensor ints(const std::vector<int32_t>& values) {
  return torch::tensor(values, torch::kInt);
}

/// Rows of experts that are tokens in a shuffled order, with a rest that no expert has.
Routing routing_of(const std::vector<int32_t>& offsets, int64_t rows, int64_t tokens) {
  std::vector<int32_t> token;
  for (int64_t r = 0; r < rows; ++r) token.push_back(static_cast<int32_t>(r * 7 % tokens));
  return {ints(offsets), ints(token), {}, {}, {}, {}};
}

FilterWeights filters_of(const FilterCase& c, int64_t experts, at::ScalarType type) {
  return {randn({experts, c.width, c.filters}, 2, type) * 0.5,
          randn({experts, c.filters}, 3, type)};
}

/// Plain loops over doubles.
at::Tensor plain_filters(const at::Tensor& x_in, const Routing& routing,
                         const FilterWeights& weights, int64_t outputs, Activation activation) {
  const at::Tensor x_TPd = x_in.to(torch::kDouble), w = weights.w.to(torch::kDouble),
                   b = weights.b.to(torch::kDouble);
  const auto x = x_TPd.accessor<double, 3>(), W = w.accessor<double, 3>();
  const auto B = b.accessor<double, 2>();
  const auto token = routing.token.accessor<int32_t, 1>();
  const auto offsets = routing.offsets.accessor<int32_t, 1>();
  const int64_t filters = w.size(2);
  at::Tensor result = torch::zeros({token.size(0), outputs}, torch::kDouble);
  auto y = result.accessor<double, 2>();
  for (int64_t e = 0; e < w.size(0); ++e) {
    for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
      for (int64_t j = 0; j < filters; ++j) {
        for (int64_t p = 0; p < x.size(1); ++p) {
          double sum = B[e][j];
          for (int64_t i = 0; i < x.size(2); ++i) sum += W[e][i][j] * x[token[r]][p][i];
          y[r][j * outputs / filters] += activation_reference(sum, activation);
        }
      }
    }
  }
  return result;
}

TEST(FilterExperts, EqualPlainLoopsForAnyShape) {
  const std::vector<int32_t> offsets = {0, 0, 70, 1200, 1201};
  const Routing routing = routing_of(offsets, 1210, 300);
  for (const FilterCase c :
       {FilterCase{4, 50, 16, 2}, {1, 3, 1, 1}, {3, 7, 66, 3}, {2, 9, 32, 2}, {5, 4, 48, 4}}) {
    for (const auto type : {torch::kFloat, torch::kDouble}) {
      const at::Tensor x = randn({300, c.patches, c.width}, 1, type);
      const FilterWeights weights = filters_of(c, 4, type);
      const at::Tensor y = filter_experts(x, routing, weights, c.outputs, Activation::tanh);
      expect_close(y, plain_filters(x, routing, weights, c.outputs, Activation::tanh),
                   type == torch::kFloat ? 1e-5 : 1e-12);
      EXPECT_EQ(y.slice(0, 1201).abs().sum().item<double>(), 0.0);
    }
  }
}

TEST(FilterExperts, EveryActivationEqualsPlainLoops) {
  const FilterCase c{4, 10, 24, 2};
  const Routing routing = routing_of({0, 5, 40}, 40, 40);
  const at::Tensor x = randn({40, c.patches, c.width}, 1);
  for (const Activation activation : testing::all_activations()) {
    const FilterWeights weights = filters_of(c, 2, torch::kDouble);
    expect_close(filter_experts(x, routing, weights, c.outputs, activation),
                 plain_filters(x, routing, weights, c.outputs, activation), 1e-12);
  }
}

TEST(FilterExperts, GradientsEqualFiniteDifferences) {
  const FilterCase c{2, 3, 6, 2};
  const Routing routing = routing_of({0, 3, 3, 5}, 6, 4);
  for (const bool of_inputs : {false, true}) {
    for (const Activation activation : testing::all_activations()) {
      const FilterWeights weights = filters_of(c, 3, torch::kDouble);
      std::vector<at::Tensor> inputs = {randn({4, c.patches, c.width}, 1), weights.w, weights.b};
      inputs[0].set_requires_grad(of_inputs);
      for (size_t i = 1; i < 3; ++i) inputs[i].set_requires_grad(true);
      expect_gradients(
          [&](const auto& in) {
            return filter_experts(in[0], routing, {in[1], in[2]}, c.outputs, activation);
          },
          inputs);
    }
  }
}

/// Gradients of w and b where y's gradient is `grad`.
std::vector<at::Tensor> gradients(const at::Tensor& x, const Routing& routing,
                                  const FilterWeights& weights, const at::Tensor& grad) {
  const at::Tensor w = weights.w.clone().requires_grad_(), b = weights.b.clone().requires_grad_();
  filter_experts(x, routing, {w, b}, grad.size(1), Activation::cubic).backward(grad);
  return {w.grad(), b.grad()};
}

TEST(FilterExperts, ManyPiecesOfAnExpertEqualOne) {
  const FilterCase c{4, 5, 550, 2};  // Some hundred rows fill a piece.
  const std::vector<int32_t> offsets = {0, 400, 1000, 1000};
  const Routing routing = routing_of(offsets, 1000, 1000);
  const at::Tensor x = randn({1000, c.patches, c.width}, 1), grad = randn({1000, 2}, 5);
  const FilterWeights weights = filters_of(c, 3, torch::kDouble);
  const auto found = gradients(x, routing, weights, grad);
  for (int64_t e = 0; e < 3; ++e) {
    const int64_t first = offsets[static_cast<size_t>(e)],
                  end = offsets[static_cast<size_t>(e) + 1];
    const at::Tensor w = weights.w[e].clone().requires_grad_();
    const at::Tensor b = weights.b[e].clone().requires_grad_();
    const at::Tensor seen = x.index_select(0, routing.token.slice(0, first, end)).matmul(w) + b;
    seen.pow(3)
        .view({-1, c.patches, 2, 275})
        .sum(at::IntArrayRef{1, 3})
        .backward(grad.slice(0, first, end));
    expect_close(found[0][e], w.grad(), 1e-11);
    expect_close(found[1][e], b.grad(), 1e-11);
  }
}

TEST(FilterExperts, NothingOfAKindGivesZeros) {
  for (const Activation activation : {Activation::cubic, Activation::identity}) {
    for (const auto& [patches, width] : {std::pair<int64_t, int64_t>{0, 3}, {2, 0}}) {
      const FilterWeights weights = filters_of({patches, width, 4, 2}, 2, torch::kDouble);
      const Routing routing = routing_of({0, 2, 4}, 4, 4);
      const at::Tensor x = randn({4, patches, width}, 1);
      const at::Tensor w = weights.w.clone().requires_grad_();
      const at::Tensor b = torch::zeros_like(weights.b).requires_grad_();
      const at::Tensor y = filter_experts(x, routing, {w, b}, 2, activation);
      EXPECT_TRUE(torch::equal(y, torch::zeros({4, 2}, torch::kDouble)));
      y.sum().backward();
      EXPECT_EQ(w.grad().abs().sum().item<double>(), 0.0);
    }
  }
}

TEST(FilterExperts, NanGradientsAreNotTakenForZero) {
  const FilterCase c{2, 3, 4, 2};
  const Routing routing = routing_of({0, 3}, 3, 3);
  const auto found = gradients(randn({3, 2, 3}, 1), routing, filters_of(c, 1, torch::kDouble),
                               torch::full({3, 2}, NAN, torch::kDouble));
  EXPECT_TRUE(found[0].isnan().all().item<bool>());
}

TEST(FilterExperts, Bfloat16IsCloseToFloat32) {
  const FilterCase c{4, 20, 16, 2};
  const Routing routing = routing_of({0, 10, 30}, 30, 30);
  const at::Tensor x = randn({30, 4, 20}, 1, torch::kFloat);
  const FilterWeights w = filters_of(c, 2, torch::kFloat);
  const auto half = [](const at::Tensor& t) { return t.to(torch::kBFloat16); };
  const at::Tensor y =
      filter_experts(half(x), routing, {half(w.w), half(w.b)}, 2, Activation::gelu);
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  expect_close(y.to(torch::kFloat), filter_experts(x, routing, w, 2, Activation::gelu), 2e-2);
}

TEST(FilterExperts, InferenceModeChangesNothing) {
  const FilterCase c{4, 20, 16, 2};
  const Routing routing = routing_of({0, 10, 30}, 30, 30);
  const FilterWeights w = filters_of(c, 2, torch::kFloat);
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    const at::Tensor x = randn({30, 4, 20}, 1, torch::kFloat).to(type);
    const FilterWeights weights = {w.w.to(type), w.b.to(type)};
    const at::Tensor wanted = filter_experts(x, routing, weights, 2, Activation::gelu);
    const c10::InferenceMode inference;
    const Routing same = routing_of({0, 10, 30}, 30, 30);
    EXPECT_TRUE(torch::equal(filter_experts(x.clone(), same, {weights.w.clone(), weights.b.clone()},
                                            2, Activation::gelu),
                             wanted));
  }
}

TEST(FilterExperts, WeightsOfAnyOrderOfStrides) {
  const FilterCase c{3, 20, 40, 2};
  const Routing routing = routing_of({0, 10, 30}, 30, 30);
  const at::Tensor x = randn({30, 3, 20}, 1);
  const FilterWeights w = filters_of(c, 2, torch::kDouble);
  const FilterWeights turned = {w.w.transpose(1, 2).contiguous().transpose(1, 2), w.b};
  expect_close(filter_experts(x, routing, turned, 2, Activation::cubic),
               filter_experts(x, routing, w, 2, Activation::cubic), 1e-12);
  const at::Tensor grad = randn({30, 2}, 5);
  const auto found = gradients(x, routing, turned, grad), wanted = gradients(x, routing, w, grad);
  for (size_t i = 0; i < 2; ++i) expect_close(found[i], wanted[i], 1e-12);
}

TEST(FilterExperts, RefuseWhatDoesNotFit) {
  const FilterCase c{2, 3, 6, 2};
  const at::Tensor x = randn({4, 2, 3}, 1);
  const FilterWeights weights = filters_of(c, 2, torch::kDouble);
  const Routing good = routing_of({0, 3, 5}, 5, 4);
  EXPECT_NO_THROW(filter_experts(x, good, weights, 2, Activation::relu));
  EXPECT_THROW(filter_experts(x, good, weights, 4, Activation::relu), Error);
  EXPECT_THROW(filter_experts(x, good, weights, 0, Activation::relu), Error);
  EXPECT_THROW(filter_experts(x[0], good, weights, 2, Activation::relu), Error);
  EXPECT_THROW(filter_experts(x.to(torch::kFloat), good, weights, 2, Activation::relu), Error);
  EXPECT_THROW(filter_experts(x.slice(0, 0, 2), good, weights, 2, Activation::relu), Error);
  EXPECT_THROW(filter_experts(x, routing_of({0, 3, 6}, 5, 4), weights, 2, Activation::relu), Error);
  EXPECT_THROW(filter_experts(x, routing_of({0, 5}, 5, 4), weights, 2, Activation::relu), Error);
  EXPECT_THROW(filter_experts(x, good, weights, 2, static_cast<Activation>(9)), Error);
  const at::Tensor none = torch::zeros({0, 2, 3}, torch::kDouble);
  EXPECT_EQ(filter_experts(none, routing_of({0, 0, 0}, 0, 1), weights, 2, Activation::relu).size(0),
            0);
}

}  // namespace
}  // namespace moesaic
