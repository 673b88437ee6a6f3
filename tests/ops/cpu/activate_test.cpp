// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/activate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ops/activation_reference.h"

namespace moesaic::ops {
namespace {

using testing::activation_reference;

/// Half the distance between 1 and the next number.
template <class Scalar>
double rounding() {
  return static_cast<double>(std::numeric_limits<Scalar>::epsilon()) / 2;
}

template <class Scalar>
class Activations : public ::testing::Test {
 protected:
  // What the functions themselves may be wrong by.
  static double tolerance() { return sizeof(Scalar) == 8 ? 1e-14 : 6e-7; }
};
using Types = ::testing::Types<float, double, c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(Activations, Types);

constexpr int64_t kRows = 3, kColumns = 1337, kCount = kRows * kColumns;

/// Numbers of [-10, 10] that are away from 0, where relu has no slope.
double place(int64_t i) {
  return (static_cast<double>(i) - 2001.5) / 200;
}

TYPED_TEST(Activations, AndTheirSlopesAreExactAndRoundedOnce) {
  using Scalar = TypeParam;
  using Sum = SumOf<Scalar>;
  for (size_t number = 0; number < kActivationNames.size(); ++number) {
    const auto activation = static_cast<Activation>(number);
    std::vector<Sum> sums(kCount), bias_grad(kColumns, Sum(1));
    std::vector<Scalar> bias(kColumns), before(kCount), out(kCount), again(kCount), grad(kCount);
    for (int64_t j = 0; j < kColumns; ++j) bias[j] = static_cast<Scalar>(j % 3);
    for (int64_t i = 0; i < kCount; ++i) sums[i] = static_cast<Sum>(place(i) - i % kColumns % 3);
    finish({kRows, kColumns, sums.data(), kColumns, bias.data(), activation, out.data(), kColumns,
            before.data(), kColumns});
    const std::vector<Sum> arriving(kCount, Sum(2));
    finish_backward({kRows, kColumns, arriving.data(), kColumns, activation, before.data(),
                     kColumns, grad.data(), kColumns, again.data(), kColumns, bias_grad.data()});
    std::vector<double> wanted_bias(kColumns, 1);
    for (int64_t i = 0; i < kCount; ++i) {
      const auto x = static_cast<double>(before[i]);
      const double h = 1e-5;
      ASSERT_NEAR(x, place(i), (rounding<Scalar>() + 2e-7) * (1 + std::abs(place(i)))) << i;
      const double wanted = activation_reference(x, activation);
      const double slope =
          (activation_reference(x + h, activation) - activation_reference(x - h, activation)) /
          (2 * h);
      ASSERT_NEAR(
          static_cast<double>(out[i]), wanted,
          this->tolerance() * (1 + std::abs(wanted)) + rounding<Scalar>() * std::abs(wanted))
          << kActivationNames[number] << " at " << x;
      ASSERT_NEAR(static_cast<double>(grad[i]), 2 * slope,
                  (this->tolerance() + 1e-8) * 4 * (1 + std::abs(slope)) +
                      2 * rounding<Scalar>() * std::abs(slope))
          << kActivationNames[number] << " at " << x;
      ASSERT_EQ(out[i], again[i]) << kActivationNames[number] << " at " << x;
      wanted_bias[i % kColumns] += 2 * slope;
    }
    for (int64_t j = 0; j < kColumns; ++j) {
      ASSERT_NEAR(static_cast<double>(bias_grad[j]), wanted_bias[j],
                  (this->tolerance() + 1e-7) * 20 * (1 + std::abs(wanted_bias[j])));
    }
  }
}

TYPED_TEST(Activations, OfExtremeValues) {
  using Scalar = TypeParam;
  const std::vector<SumOf<Scalar>> in = {-1e30, -1e10, -1e4, -90, 90, 1e4, 1e10, NAN};
  const int64_t columns = 8;
  const std::vector<Scalar> zeros(columns, Scalar(0));
  std::vector<Scalar> before(columns);
  for (const auto activation : {Activation::gelu_tanh, Activation::gelu}) {
    std::vector<Scalar> out(columns), slope(columns), again(columns);
    finish({1, columns, in.data(), columns, zeros.data(), activation, out.data(), columns,
            before.data(), columns});
    const std::vector<SumOf<Scalar>> ones(columns, 1);
    std::vector<SumOf<Scalar>> bias_grad(columns);
    finish_backward({1, columns, ones.data(), columns, activation, before.data(), columns,
                     slope.data(), columns, again.data(), columns, bias_grad.data()});
    for (int64_t i = 0; i < 7; ++i) {
      if (!std::isfinite(static_cast<double>(before[i]))) continue;  // Too large for float16.
      EXPECT_EQ(out[i], in[i] < 0 ? Scalar(0) : before[i]) << in[i];
      EXPECT_EQ(slope[i], Scalar(in[i] < 0 ? 0 : 1)) << in[i];
    }
    EXPECT_TRUE(std::isnan(static_cast<double>(out[7])));
    EXPECT_TRUE(std::isnan(static_cast<double>(slope[7])));
  }
}

TEST(RoundRows, TakesTheNearestTiesToEvenAndKeepsNan) {
  const std::vector<float> in = {1, 1.00390625F, 1.01171875F, -3.3F, INFINITY, NAN, 0, 9};
  std::vector<c10::BFloat16> out(6);
  round_rows(in.data(), 2, 3, 4, out.data(), 3);
  EXPECT_EQ(static_cast<float>(out[0]), 1.0F);
  EXPECT_EQ(static_cast<float>(out[1]), 1.0F);       // A tie, down to the even one.
  EXPECT_EQ(static_cast<float>(out[2]), 1.015625F);  // A tie, up to the even one.
  EXPECT_EQ(static_cast<float>(out[3]), INFINITY);
  EXPECT_TRUE(std::isnan(static_cast<float>(out[4])));
  EXPECT_EQ(static_cast<float>(out[5]), 0.0F);
}

}  // namespace
}  // namespace moesaic::ops
