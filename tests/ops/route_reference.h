// SPDX-License-Identifier: Apache-2.0
// Every routing as plain loops over doubles, written from the definitions and not from the kernels.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "moesaic/ops/route.h"

namespace moesaic::testing {

/// weight[t][e]: what expert e's output is multiplied with for token t; 0 where it computes
/// nothing.
struct RouteReference {
  std::vector<std::vector<double>> weight;
  std::vector<std::vector<bool>> routed;
};

RouteReference token_choice_reference(const at::Tensor& logits_TE, const RouteOptions& options);
RouteReference expert_choice_reference(const at::Tensor& logits_TE, const RouteOptions& options);
RouteReference adaptive_reference(const at::Tensor& logits_TE, double threshold,
                                  const std::vector<int64_t>& kept);

/// Checks every array of a routing, unused rows included, against the plain loops.
void expect_routing(const Routing& routing, const RouteReference& reference,
                    const std::vector<int64_t>& kept);

/// Bitwise equal arrays.
void expect_same_routing(const Routing& a, const Routing& b);

/// Shapes and types of the same call on the meta device.
void expect_same_shapes(const Routing& routing, const Routing& meta);

/// The same bits, and those of the gradient, on any number of threads.
inline void expect_same_on_threads(const at::Tensor& logits, const RouteOptions& options) {
  const int before = at::get_num_threads();
  std::vector<Routing> routings;
  std::vector<at::Tensor> grads;
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    const at::Tensor leaf = logits.clone().set_requires_grad(true);
    routings.push_back(route(leaf, options));
    routings.back().gate.square().sum().backward();
    grads.push_back(leaf.grad());
    expect_same_routing(routings.front(), routings.back());
    EXPECT_TRUE(torch::equal(grads.front(), grads.back()));
  }
  at::set_num_threads(before);
}

}  // namespace moesaic::testing
