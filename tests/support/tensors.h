// SPDX-License-Identifier: Apache-2.0
// Helpers for tests that compare tensors.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace moesaic::testing {

/// Seeded normal values, independent of the global generator.
at::Tensor randn(std::vector<int64_t> shape, uint64_t seed, at::ScalarType type = at::kDouble);

/// Fails the test unless shapes agree and |a - b| <= tolerance * max(1, max|b|) everywhere.
void expect_close(const at::Tensor& a, const at::Tensor& b, double tolerance);

/// Fails the test unless both have the same names, each with equal tensors.
void expect_equal_tensors(const std::map<std::string, at::Tensor>& found,
                          const std::map<std::string, at::Tensor>& wanted);

/// Fails the test unless the gradient of sum(f(inputs) * fixed weights) agrees with central
/// differences for every element of every input that requires a gradient. Inputs are float64.
void expect_gradients(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& f,
                      std::vector<at::Tensor> inputs, double tolerance = 1e-6);

}  // namespace moesaic::testing

namespace moesaic {

using testing::expect_close;
using testing::expect_equal_tensors;
using testing::expect_gradients;
using testing::randn;

}  // namespace moesaic
