// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/gated.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;

Tensor unit(const Tensor& rows) {
  return rows / rows.norm(2, {1}, true);
}

/// Both errors by trying all permutations.
RecoveryError plain(const Tensor& a, const Tensor& true_a, const Tensor& w, const Tensor& true_w) {
  const int64_t k = a.size(0);
  const Tensor cosines = unit(a).mm(unit(true_a).t()).abs();
  std::vector<int64_t> order(static_cast<size_t>(k)), best;
  std::iota(order.begin(), order.end(), 0);
  double most = -1.0;
  do {
    double least = 1.0;
    for (int64_t i = 0; i < k; ++i) least = std::min(least, cosines[i][order[i]].item<double>());
    if (least > most) {
      most = least;
      best = order;
    }
  } while (std::next_permutation(order.begin(), order.end()));
  const Tensor all = at::cat({w, torch::zeros({1, w.size(1)}, w.options())});
  const auto place = [&](int64_t of) {
    return std::find(best.begin(), best.end(), of) - best.begin();
  };
  double gates = 1.0;
  for (int64_t j = 0; j + 1 < k; ++j) {
    const Tensor own = all[place(j)] - all[place(k - 1)];
    gates = std::min(gates, (own.dot(true_w[j]) / own.norm() / true_w[j].norm()).item<double>());
  }
  return {1.0 - most, 1.0 - gates};
}

TEST(Recovery, ErrorsEqualThoseOfAllPermutations) {
  for (int trial = 0; trial < 40; ++trial) {
    const int64_t k = 2 + trial % 4;
    const Tensor a = randn({k, 7}, 4 * trial), true_a = randn({k, 7}, 4 * trial + 1);
    const Tensor w = randn({k - 1, 7}, 4 * trial + 2), true_w = randn({k - 1, 7}, 4 * trial + 3);
    const RecoveryError wanted = plain(a, true_a, w, true_w);
    const RecoveryError found = recovery_error(a, true_a, w, true_w);
    EXPECT_NEAR(found.regressors, wanted.regressors, 1e-12);
    // Of more experts several permutations may share the min, but not the gates.
    if (k > 2) continue;
    EXPECT_NEAR(found.gates, wanted.gates, 1e-12);
  }
}

TEST(Recovery, IsExactForAPermutedMixtureOfOtherSignsAndScales) {
  const Tensor true_a = randn({3, 8}, 1), true_w = randn({2, 8}, 2);
  const Tensor a = at::stack({-2 * true_a[2], 0.5 * true_a[0], true_a[1]});
  // Logits of experts 2, 0 and 1, less the one that comes last now.
  const Tensor w = at::stack({-true_w[1], true_w[0] - true_w[1]});
  const RecoveryError found = recovery_error(a, true_a, w, true_w);
  EXPECT_NEAR(found.regressors, 0.0, 1e-12);
  EXPECT_NEAR(found.gates, 0.0, 1e-12);
  EXPECT_NEAR(recovery_error(a, true_a, -w, true_w).gates, 2.0, 1e-12);
}

TEST(Recovery, DistancesAreTheLargestOfARow) {
  const Tensor true_a = randn({3, 8}, 1), true_w = randn({2, 8}, 2);
  const Tensor off_a = 0.01 * randn({3, 8}, 3), off_w = 0.01 * randn({3, 8}, 4);
  // Experts 2, 0 and 1 of the truth, whose gates are referred to that of expert 2.
  const Tensor a = at::stack({true_a[2], true_a[0], true_a[1]}) + off_a;
  const Tensor w = at::stack({-true_w[1] + off_w[0], true_w[0] - true_w[1] + off_w[1]});
  const RecoveryError found = recovery_error(a, true_a, w, true_w);
  EXPECT_NEAR(found.regressors_distance, off_a.norm(2, {1}).max().item<double>(), 1e-12);
  const double first = (off_w[1] - off_w[0]).norm().item<double>();
  EXPECT_NEAR(found.gates_distance, std::max(first, off_w[0].norm().item<double>()), 1e-12);
}

TEST(Recovery, WithoutLearnedGatesTheirErrorIsOne) {
  const Tensor a = randn({2, 3}, 1), w = randn({1, 3}, 2);
  EXPECT_EQ(recovery_error(a, a, torch::zeros_like(w), w).gates, 1.0);
}

}  // namespace
}  // namespace moesaic
