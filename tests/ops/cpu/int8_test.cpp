// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/ops/device.h"
#include "moesaic/ops/route.h"
#include "moesaic/ops/routed_mlp.h"
#include "ops/cpu/int8.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

ExpertWeights weights_of(int64_t experts, int64_t width, int64_t hidden) {
  return {randn({experts, width, hidden}, 11, at::kFloat) * 0.2,
          randn({experts, hidden}, 12, at::kFloat),
          randn({experts, hidden, width}, 13, at::kFloat) * 0.2,
          randn({experts, width}, 14, at::kFloat)};
}

/// A product in float64, and a bound of the error that rounding of both factors to 255 levels
/// gives, beside errors of x: |x w - x' w'| <= |x' - x| |w| + |x'| |w' - w|, term by term.
struct Bounded {
  at::Tensor value, error;
};

Bounded bounded_product(const Bounded& x, const at::Tensor& w, const at::Tensor& b) {
  const at::Tensor x_step = (x.value.abs() + x.error).amax(1, true) / 254;
  const at::Tensor w_step = w.abs().amax(0, true) / 254;  // Half a level.
  const at::Tensor x_error = x.error + x_step;
  const at::Tensor largest = x.value.abs() + x_error;
  return {x.value.mm(w) + b, x_error.mm(w.abs()) + largest.sum(1, true) * w_step + 1e-5};
}

class Int8Experts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_int8_matmul()) GTEST_SKIP() << "this processor has no products of int8";
  }
  const torch::NoGradGuard no_grad_;
};

TEST_F(Int8Experts, AreWithinTheBoundThatTheirScalesGive) {
  // Partial panels, one of several blocks of rows, and more than one stretch of hidden units.
  for (const auto& [width, hidden] : {std::pair{36, 52}, {320, 132}, {64, 1600}}) {
    const ExpertWeights w = weights_of(2, width, hidden);
    const at::Tensor x = randn({600, width}, 3, at::kFloat);
    const Routing routing = route(randn({600, 2}, 2, at::kFloat), {.k = 1});
    const at::Tensor y = routed_mlp(x, routing, quantise_experts(w), Activation::relu);
    const int64_t filled = routing.offsets[2].item<int64_t>();
    ASSERT_EQ(filled, 600);
    for (int64_t e = 0; e < 2; ++e) {
      const int64_t first = routing.offsets[e].item<int64_t>();
      const int64_t count = routing.offsets[e + 1].item<int64_t>() - first;
      const at::Tensor token = routing.token.narrow(0, first, count).to(at::kLong);
      const auto of = [&](const at::Tensor& t) { return t[e].to(at::kDouble); };
      const at::Tensor rows = x.index_select(0, token).to(at::kDouble);
      Bounded inner = bounded_product({rows, at::zeros_like(rows)}, of(w.w1), of(w.b1));
      inner.value = inner.value.relu();  // Which does not grow an error.
      const Bounded outer = bounded_product(inner, of(w.w2), of(w.b2));
      const at::Tensor gate = routing.gate.narrow(0, first, count).to(at::kDouble).unsqueeze(1);
      const at::Tensor error =
          (y.index_select(0, token).to(at::kDouble) - gate * outer.value).abs();
      EXPECT_TRUE((error <= gate * outer.error).all().item<bool>()) << width << " x " << hidden;
      EXPECT_LE(error.mean().item<double>(), 0.03 * outer.value.abs().mean().item<double>());
    }
  }
}

TEST_F(Int8Experts, ReachTheEndsOfTheirRangeExactly) {
  // All numbers are levels: weights and tokens of -127, 0 and 127, in sums of 16 bits and more.
  const int64_t width = 64;
  const ExpertWeights w{at::full({1, width, 4}, 127.0F), at::zeros({1, 4}),
                        at::eye(4, width).unsqueeze(0), at::zeros({1, width})};
  w.w1.select(2, 1).neg_();
  w.w1.select(2, 2).zero_();
  const at::Tensor x = at::stack({at::full({width}, 127.0F), at::full({width}, -127.0F)});
  const Routing routing = route(at::zeros({2, 1}), {.k = 1});
  const at::Tensor y = routed_mlp(x, routing, quantise_experts(w), Activation::identity);
  const float sum = 127.0F * 127.0F * static_cast<float>(width);
  const at::Tensor wanted = torch::tensor({{sum, -sum, 0.0F, sum}, {-sum, sum, 0.0F, -sum}});
  EXPECT_TRUE(at::allclose(y.narrow(1, 0, 4), wanted, 1e-5, 0));
  EXPECT_EQ(y.narrow(1, 4, width - 4).abs().max().item<float>(), 0.0F);
}

TEST_F(Int8Experts, ZeroRowsGiveTheBiasesAndNoRowsGiveZeros) {
  const ExpertWeights w = weights_of(3, 8, 12), q = quantise_experts(w);
  // Expert 1 is not used.
  const Routing some =
      route(torch::tensor({{9.0F, 0.0F, 0.0F}, {0.0F, 0.0F, 9.0F}, {9.0F, 0.0F, 0.0F}}), {.k = 1});
  const at::Tensor zeros = at::zeros({3, 8});
  expect_close(routed_mlp(zeros, some, q, Activation::identity).narrow(0, 0, 1),
               some.gate[0] * (w.b1[0].matmul(w.w2[0]) + w.b2[0]).unsqueeze(0), 5e-2);
  ExpertWeights plain = w;
  plain.w1 = at::zeros_like(w.w1);  // Channels of zeros.
  plain.b1 = at::zeros_like(w.b1);
  const at::Tensor y =
      routed_mlp(randn({3, 8}, 5, at::kFloat), some, quantise_experts(plain), Activation::identity);
  expect_close(y[0], some.gate[0] * w.b2[0], 1e-6);
  const Routing none = route(at::zeros({0, 3}), {.k = 1});
  EXPECT_EQ(routed_mlp(at::zeros({0, 8}), none, q, Activation::relu).size(0), 0);
}

TEST_F(Int8Experts, ComputeATokenTheSameInAnyBatch) {
  const ExpertWeights q = quantise_experts(weights_of(4, 36, 900));
  const at::Tensor x = randn({300, 36}, 3, at::kFloat), logits = randn({300, 4}, 2, at::kFloat);
  const auto compute = [&](int64_t first, int64_t count) {
    return routed_mlp(x.narrow(0, first, count), route(logits.narrow(0, first, count), {.k = 2}), q,
                      Activation::gelu_tanh);
  };
  const at::Tensor all = compute(0, 300);
  for (const auto& [first, count] : {std::pair{0, 1}, {17, 30}, {299, 1}}) {
    EXPECT_TRUE(at::equal(compute(first, count), all.narrow(0, first, count))) << first;
  }
}

TEST_F(Int8Experts, KeepValuesThatAreNotFinite) {
  const ExpertWeights q = quantise_experts(weights_of(1, 8, 12));
  at::Tensor x = at::ones({3, 8});
  x[0][3] = std::numeric_limits<float>::quiet_NaN();
  x[1][3] = std::numeric_limits<float>::infinity();
  const at::Tensor y = routed_mlp(x, route(at::zeros({3, 1}), {.k = 1}), q, Activation::identity);
  EXPECT_FALSE(y.narrow(0, 0, 2).isfinite().any().item<bool>());
  EXPECT_TRUE(y[2].isfinite().all().item<bool>());
}

TEST_F(Int8Experts, RefuseWhatTheyCannotCompute) {
  EXPECT_THROW(quantise_experts(weights_of(2, 6, 12)), Error);
  EXPECT_THROW(quantise_experts(weights_of(2, 8, 10)), Error);
  const Routing routing = route(at::zeros({3, 2}), {.k = 1});
  ExpertWeights q = quantise_experts(weights_of(2, 8, 12));
  EXPECT_THROW(routed_mlp(at::ones({3, 8}, at::kDouble), routing, q, Activation::relu), Error);
  q.w2_scale = q.w1_scale;
  EXPECT_THROW(routed_mlp(at::ones({3, 8}), routing, q, Activation::relu), Error);
}

TEST(QuantiseRows, RoundsToTheNearestOf255Levels) {
  const std::vector<float> from = {-2.54F, 2.54F, 0.0F, 0.031F, -0.029F, 99.0F,  // Level: 0.02.
                                   0.0F,   0.0F,  0.0F, 0.0F,   0.0F,    99.0F};
  std::vector<uint8_t> bytes(10);
  std::vector<float> scale(2);
  ops::quantise_rows(from.data(), 6, 2, 5, bytes.data(), scale.data());
  EXPECT_EQ(bytes, (std::vector<uint8_t>{1, 255, 128, 130, 127, 128, 128, 128, 128, 128}));
  EXPECT_NEAR(scale[0], 0.02F, 1e-7);
  EXPECT_EQ(scale[1], 0.0F);
}

}  // namespace
}  // namespace moesaic
