// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/linear.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/tensors.h"

namespace moesaic {
namespace {

struct LinearCase {
  std::vector<int64_t> rows;
  int64_t in, out;
};

/// x W^T + b by plain loops in float64.
at::Tensor linear_reference(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  const at::Tensor y = torch::zeros({x.size(0), w.size(0)}, torch::kDouble);
  auto to = y.accessor<double, 2>();
  const auto a = x.accessor<double, 2>(), c = w.accessor<double, 2>();
  const auto bias = b.accessor<double, 1>();
  for (int64_t r = 0; r < x.size(0); ++r) {
    for (int64_t o = 0; o < w.size(0); ++o) {
      to[r][o] = bias[o];
      for (int64_t k = 0; k < w.size(1); ++k) to[r][o] += a[r][k] * c[o][k];
    }
  }
  return y;
}

void check_linear(const LinearCase& c, at::ScalarType type, double tolerance) {
  torch::manual_seed(2);
  std::vector<int64_t> shape = c.rows;
  shape.push_back(c.in);
  const at::Tensor x = torch::randn(shape, type).requires_grad_();
  const at::Tensor w = torch::randn({c.out, c.in}, type).requires_grad_();
  const at::Tensor b = torch::randn({c.out}, type).requires_grad_();
  const at::Tensor y = moesaic::linear(x, w, b);
  shape.back() = c.out;
  ASSERT_EQ(y.sizes(), shape);
  const auto wide = [](const at::Tensor& t) { return t.detach().to(torch::kDouble); };
  const at::Tensor rows = wide(x).reshape({-1, c.in});
  const at::Tensor wanted = linear_reference(rows, wide(w), wide(b));
  EXPECT_LT((wide(y).reshape({-1, c.out}) - wanted).abs().max().item<double>(), tolerance);

  const at::Tensor grad = torch::randn(shape, type);
  y.backward(grad);
  const at::Tensor g = wide(grad).reshape({-1, c.out});
  EXPECT_LT((wide(x.grad()).reshape({-1, c.in}) - g.mm(wide(w))).abs().max().item<double>(),
            tolerance);
  EXPECT_LT((wide(w.grad()) - g.t().mm(rows)).abs().max().item<double>(), tolerance);
  EXPECT_LT((wide(b.grad()) - g.sum(0)).abs().max().item<double>(), tolerance);
}

TEST(Linear, EqualsPlainLoopsWithItsGradients) {
  for (const LinearCase& c :
       {LinearCase{{33}, 5, 7}, LinearCase{{3, 17}, 32, 96}, LinearCase{{300}, 19, 64},
        LinearCase{{2, 130}, 64, 31}, LinearCase{{4}, 6, 5}}) {
    check_linear(c, torch::kDouble, 1e-11);
    check_linear(c, torch::kFloat, 1e-4);
  }
}

TEST(Linear, GradientsAgreeWithFiniteDifferences) {
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({40, 3}, torch::kDouble).requires_grad_();
  const at::Tensor w = torch::randn({2, 3}, torch::kDouble).requires_grad_();
  const at::Tensor b = torch::randn({2}, torch::kDouble).requires_grad_();
  const auto loss = [&] { return moesaic::linear(x, w, b).pow(3).sum(); };
  loss().backward();
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& t : {x, w, b}) {
    for (const int64_t i : {int64_t{0}, t.numel() - 1}) {
      double& at = t.data_ptr<double>()[i];
      const double before = at, h = 1e-5;
      at = before + h;
      const double above = loss().item<double>();
      at = before - h;
      const double below = loss().item<double>();
      at = before;
      EXPECT_NEAR(t.grad().flatten()[i].item<double>(), (above - below) / (2 * h), 1e-4);
    }
  }
}

TEST(Linear, SecondDerivativesAreThoseOfTheLibrary) {
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({40, 3}, torch::kDouble).requires_grad_();
  const at::Tensor w = torch::randn({2, 3}, torch::kDouble).requires_grad_();
  const at::Tensor b = torch::randn({2}, torch::kDouble);
  const auto second = [&](const at::Tensor& y) {
    const at::Tensor slope = torch::autograd::grad({y.pow(3).sum()}, {x}, {}, {}, true)[0];
    return torch::autograd::grad({slope.pow(2).sum()}, {w})[0];
  };
  const at::Tensor wanted = second(at::linear(x, w, b));
  EXPECT_LT((second(moesaic::linear(x, w, b)) - wanted).abs().max().item<double>(), 1e-9);
}

TEST(Linear, RefusesWhatLinearRefuses) {
  EXPECT_ANY_THROW(moesaic::linear(torch::randn({40, 3}), torch::randn({2, 4}), torch::randn({2})));
}

TEST(Linear, LeavesOtherTypesToTheLibrary) {
  const at::Tensor x = torch::randn({64, 8}).to(torch::kBFloat16);
  const at::Tensor w = torch::randn({4, 8}).to(torch::kBFloat16);
  EXPECT_EQ(moesaic::linear(x, w, torch::zeros({4}, torch::kBFloat16)).scalar_type(),
            torch::kBFloat16);
}

}  // namespace
}  // namespace moesaic
