// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace moesaic::ops {
namespace {

double element(int64_t i, int64_t j) {
  return std::sin(static_cast<double>(3 * i + 7 * j + i * j));
}

/// Elements (i, j) of [rows, columns], each row `stride` numbers long; what is between them is NaN.
template <class Scalar>
std::vector<Scalar> matrix(int64_t rows, int64_t columns, int64_t stride) {
  std::vector<Scalar> numbers(rows * stride, Scalar(NAN));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      numbers[i * stride + j] = static_cast<Scalar>(static_cast<float>(element(i, j)));
    }
  }
  return numbers;
}

template <class Scalar>
class Products : public ::testing::Test {
 protected:
  void SetUp() override {
    if constexpr (kIsHalfWide<Scalar>) {
      if (product_layout<Scalar>() == ProductLayout::none) {
        GTEST_SKIP() << "this processor has no products of this type";
      }
    }
  }
  static double tolerance(int64_t depth) {
    const double unit = sizeof(Scalar) == 8 ? 1e-15 : 1e-7;
    return unit * static_cast<double>(20 * (depth + 10));
  }
};
using Types = ::testing::Types<float, double, c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(Products, Types);

/// Checks c[i, j] = start + sum over k of a(i, k) b(k, j), numbers outside of `columns` untouched.
template <class Scalar, class A, class B>
void expect_product(const std::vector<SumOf<Scalar>>& c, int64_t rows, int64_t depth,
                    int64_t columns, int64_t stride, double start, double tolerance, A a, B b) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      double wanted = start;
      for (int64_t k = 0; k < depth; ++k) {
        wanted += static_cast<double>(a(i, k)) * static_cast<double>(b(k, j));
      }
      ASSERT_NEAR(static_cast<double>(c[i * stride + j]), wanted, tolerance)
          << rows << " x " << depth << " x " << columns << " at " << i << ", " << j;
    }
    for (int64_t j = columns; j < stride; ++j) ASSERT_EQ(c[i * stride + j], SumOf<Scalar>(-7));
  }
}

TYPED_TEST(Products, OfPackedRowsAndColumnsEqualPlainLoops) {
  using Scalar = TypeParam;
  for (const int64_t rows : {1, 15, 16, 17, 129, 300}) {
    for (const int64_t depth : {2, 6, 34, 70}) {
      for (const int64_t columns : {1, 8, 21, 64}) {
        const auto a = matrix<Scalar>(rows, depth, depth + 3);
        const auto b = matrix<Scalar>(depth, columns, columns + 5);
        const auto turned = matrix<Scalar>(columns, depth, depth + 2);
        std::vector<Scalar> packed(padded_depth<Scalar>(depth) * columns);
        for (const bool accumulate : {false, true}) {
          const auto check = [&](auto element_of_b) {
            std::vector<SumOf<Scalar>> c(rows * (columns + 3), -7);
            multiply({rows, depth, columns, a.data(), depth + 3, packed.data(), columns, c.data(),
                      columns + 3, accumulate});
            expect_product<Scalar>(
                c, rows, depth, columns, columns + 3, accumulate ? -7 : 0, this->tolerance(depth),
                [&](int64_t i, int64_t k) { return a[i * (depth + 3) + k]; }, element_of_b);
          };
          pack_rows(b.data(), columns + 5, depth, columns, packed.data());
          check([&](int64_t k, int64_t j) { return b[k * (columns + 5) + j]; });
          pack_columns(turned.data(), depth + 2, depth, columns, packed.data());
          check([&](int64_t k, int64_t j) { return turned[j * (depth + 2) + k]; });
        }
      }
    }
  }
}

TYPED_TEST(Products, OverRowsArePaddedWithZeros) {
  using Scalar = TypeParam;
  for (const int64_t depth : {1, 2, 15, 31, 33, 256}) {
    for (const int64_t rows : {1, 9, 24}) {
      const int64_t columns = 11, all = padded_depth<Scalar>(depth);
      const auto left = matrix<Scalar>(depth, rows, rows + 2);
      const auto right = matrix<Scalar>(depth, columns, columns + 2);
      std::vector<Scalar> a(rows * all, Scalar(NAN)), b(all * columns, Scalar(NAN));
      transpose(left.data(), rows + 2, depth, rows, a.data());
      pack_rows(right.data(), columns + 2, depth, columns, b.data());
      std::vector<SumOf<Scalar>> c(rows * columns);
      multiply({rows, all, columns, a.data(), all, b.data(), columns, c.data(), columns, false});
      expect_product<Scalar>(
          c, rows, depth, columns, columns, 0, this->tolerance(depth),
          [&](int64_t i, int64_t k) { return left[k * (rows + 2) + i]; },
          [&](int64_t k, int64_t j) { return right[k * (columns + 2) + j]; });
    }
  }
}

TYPED_TEST(Products, OfARowDoNotDependOnTheRowsBesideIt) {
  using Scalar = TypeParam;
  const int64_t rows = 150, depth = 96, columns = 40;
  const auto a = matrix<Scalar>(rows, depth, depth);
  const auto b = matrix<Scalar>(depth, columns, columns);
  std::vector<Scalar> packed(padded_depth<Scalar>(depth) * columns);
  pack_rows(b.data(), columns, depth, columns, packed.data());
  const auto product = [&](int64_t first, int64_t count) {
    std::vector<SumOf<Scalar>> c(count * columns);
    multiply({count, depth, columns, a.data() + first * depth, depth, packed.data(), columns,
              c.data(), columns, false});
    return c;
  };
  const auto whole = product(0, rows);
  for (const int64_t row : {0, 37, 128, 149}) {
    const auto alone = product(row, 1);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), whole.begin() + row * columns)) << row;
  }
}

}  // namespace
}  // namespace moesaic::ops
