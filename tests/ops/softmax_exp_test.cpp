// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/softmax_exp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/kernels/select.h"

namespace moesaic::ops {
namespace {

using kernels::order_key;

constexpr float kInfinityF = std::numeric_limits<float>::infinity();

TEST(SoftmaxExp, IsWithinTwoUnitsOfTheExponential) {
  double worst = 0;
  for (int i = 0; i <= 860000; ++i) {
    const float x = -static_cast<float>(i) * 1e-4f;
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(softmax_exp(x) - exact) / exact);
  }
  EXPECT_LT(worst, 2.4e-7);
}

TEST(SoftmaxExp, IsExactAtItsEnds) {
  EXPECT_EQ(softmax_exp(0.0f), 1.0f);
  EXPECT_EQ(softmax_exp(-0.0f), 1.0f);
  EXPECT_EQ(softmax_exp(-88.0f), 0.0f);
  EXPECT_EQ(softmax_exp(-1e30f), 0.0f);
  EXPECT_EQ(softmax_exp(-kInfinityF), 0.0f);
  EXPECT_GT(softmax_exp(-87.0f), 0.0f);
  EXPECT_EQ(softmax_exp(0.0), 1.0);
}

template <class Scalar>
void expect_keys_in_order() {
  using Limits = std::numeric_limits<Scalar>;
  const std::vector<Scalar> ascending = {-Limits::infinity(),
                                         -Limits::max(),
                                         Scalar(-2),
                                         Scalar(-1),
                                         -Limits::min(),
                                         -Limits::denorm_min(),
                                         Scalar(0),
                                         Limits::denorm_min(),
                                         Limits::min(),
                                         Scalar(1),
                                         Scalar(1) + Limits::epsilon(),
                                         Limits::max(),
                                         Limits::infinity()};
  for (size_t i = 0; i < ascending.size(); ++i) {
    for (size_t j = 0; j < ascending.size(); ++j) {
      EXPECT_EQ(order_key(ascending[i]) < order_key(ascending[j]), i < j) << i << " " << j;
    }
  }
  EXPECT_EQ(order_key(Scalar(0)), order_key(-Scalar(0)));
}

TEST(OrderKey, OrdersLikeTheNumbers) {
  expect_keys_in_order<float>();
  expect_keys_in_order<double>();
}

}  // namespace
}  // namespace moesaic::ops
