// SPDX-License-Identifier: Apache-2.0
#include "support/tensors.h"

#include <ATen/CPUGeneratorImpl.h>

namespace moesaic::testing {

at::Tensor randn(std::vector<int64_t> shape, uint64_t seed, at::ScalarType type) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return torch::empty(shape, torch::kDouble).normal_(0.0, 1.0, generator).to(type);
}

void expect_close(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  ASSERT_EQ(a.sizes(), b.sizes());
  if (a.numel() == 0) return;
  const at::Tensor wanted = b.to(torch::kDouble);
  const double scale = std::max(1.0, wanted.abs().max().item<double>());
  const double worst = (a.to(torch::kDouble) - wanted).abs().max().item<double>();
  EXPECT_LE(worst, tolerance * scale);
}

void expect_equal_tensors(const std::map<std::string, at::Tensor>& found,
                          const std::map<std::string, at::Tensor>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
  }
}

void expect_gradients(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& f,
                      std::vector<at::Tensor> inputs, double tolerance) {
  constexpr double kStep = 1e-5;
  const at::Tensor weights = randn(f(inputs).sizes().vec(), 991);
  const auto value = [&] {
    const torch::NoGradGuard no_grad;
    return (f(inputs) * weights).sum().item<double>();
  };
  (f(inputs) * weights).sum().backward();
  for (at::Tensor& input : inputs) {
    if (!input.requires_grad()) continue;
    const at::Tensor analytic = input.grad().clone();
    at::Tensor numeric = torch::zeros_like(analytic);
    double* data = input.mutable_data_ptr<double>();
    for (int64_t i = 0; i < input.numel(); ++i) {
      const double before = data[i];
      data[i] = before + kStep;
      const double up = value();
      data[i] = before - kStep;
      const double down = value();
      data[i] = before;
      numeric.mutable_data_ptr<double>()[i] = (up - down) / (2 * kStep);
    }
    expect_close(analytic, numeric, tolerance);
  }
}

}  // namespace moesaic::testing
