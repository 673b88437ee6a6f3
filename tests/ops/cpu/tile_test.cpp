// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ops/activation_reference.h"
#include "support/tensors.h"

namespace moesaic::ops {
namespace {

using testing::activation_reference;

template <class Scalar>
std::vector<const TileKernels<Scalar>*> tables() {
  std::vector<const TileKernels<Scalar>*> list = {tile_kernels_generic<Scalar>()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) list.push_back(tile_kernels_avx2<Scalar>());
  if (__builtin_cpu_supports("avx512f")) list.push_back(tile_kernels_avx512<Scalar>());
#endif
  return list;
}

double element(int64_t i, int64_t j) {
  return std::sin(static_cast<double>(3 * i + 7 * j + i * j));
}

struct Case {
  int64_t rows, depth, columns;
  bool a_by_columns, b_transposed, accumulate;
  bool unpacked;  // the product packs the panel itself
};

template <class Scalar>
void check_product(const TileKernels<Scalar>& kernels, const Case& c) {
  const auto matrix = [](int64_t rows, int64_t columns, bool turned) {
    std::vector<Scalar> m(rows * columns);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        m[turned ? j * rows + i : i * columns + j] = static_cast<Scalar>(element(i, j));
      }
    }
    return m;
  };
  const auto a = matrix(c.rows, c.depth, c.a_by_columns);
  const auto b = matrix(c.depth, c.columns, c.b_transposed);
  std::vector<Scalar> bias(c.columns), panel(c.depth * kernels.columns), sums(c.columns);
  for (int64_t j = 0; j < c.columns; ++j) bias[j] = static_cast<Scalar>(j + 0.5);
  // Whole lines, as streamed results need them, for some.
  const int64_t stride = c.columns == kernels.columns ? 2 * c.columns : c.columns + 3;
  const at::Tensor memory =
      at::full({c.rows * stride}, -7, at::CPU(sizeof(Scalar) == 4 ? at::kFloat : at::kDouble));
  auto* out = memory.mutable_data_ptr<Scalar>();
  const PanelSource<Scalar> source{b.data(), c.b_transposed ? c.depth : c.columns, c.depth,
                                   c.columns, c.b_transposed};
  kernels.pack(source, panel.data(), sums.data());
  const std::vector<Scalar> packed = panel;
  if (c.unpacked) std::fill(panel.begin(), panel.end(), Scalar(NAN));
  kernels.multiply({c.rows,
                    c.depth,
                    c.columns,
                    a.data(),
                    c.a_by_columns ? c.rows : c.depth,
                    c.a_by_columns,
                    panel.data(),
                    bias.data(),
                    out,
                    stride,
                    c.accumulate,
                    c.rows % 2 == 0,
                    {reinterpret_cast<const char*>(b.data()), 64, 5, 130},
                    c.unpacked ? &source : nullptr});
  ASSERT_EQ(panel, packed);
  const double tolerance = sizeof(Scalar) == 4 ? 2e-5 : 1e-12;
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.columns; ++j) {
      double wanted = c.accumulate ? -7.0 : static_cast<double>(j) + 0.5;
      for (int64_t k = 0; k < c.depth; ++k) wanted += element(i, k) * element(k, j);
      ASSERT_NEAR(out[i * stride + j], wanted, tolerance * static_cast<double>(c.depth + 10))
          << kernels.name << " rows " << c.rows << " depth " << c.depth << " columns " << c.columns
          << " at " << i << ", " << j;
    }
    for (int64_t j = c.columns; j < stride; ++j) ASSERT_EQ(out[i * stride + j], Scalar(-7));
  }
  for (int64_t j = 0; j < c.columns; ++j) {
    double wanted = 0;
    for (int64_t k = 0; k < c.depth; ++k) wanted += element(k, j);
    ASSERT_NEAR(sums[j], wanted, tolerance * static_cast<double>(c.depth + 10));
  }
}

template <class Scalar>
void check_products() {
  for (const auto* kernels : tables<Scalar>()) {
    for (int64_t rows = 0; rows <= 30; ++rows) {
      const int64_t columns = rows % 3 == 0   ? kernels->columns
                              : rows % 3 == 1 ? kernels->columns / 2
                                              : 1 + rows % kernels->columns;
      for (const int64_t depth : {1, 4, 7, 33}) {
        for (int flags = 0; flags < 16; ++flags) {
          check_product(*kernels, {rows, depth, columns, (flags & 1) != 0, (flags & 2) != 0,
                                   (flags & 4) != 0, (flags & 8) != 0});
        }
      }
    }
  }
}

TEST(Tile, ProductsEqualPlainLoopsForEveryHeightDepthAndLayout) {
  check_products<float>();
  check_products<double>();
}

template <class Scalar>
void check_activation(const TileKernels<Scalar>& kernels, Activation activation, double tolerance) {
  constexpr int64_t kCount = 4003;
  std::vector<Scalar> in(kCount), out(kCount), grad(kCount, Scalar(2)), again(kCount), copy(kCount);
  // Odd steps keep clear of 0, where relu has no slope.
  for (int64_t i = 0; i < kCount; ++i) in[i] = static_cast<Scalar>((i - 2001.5) / 200);
  kernels.activate(activation, {1, kCount, kCount, kCount}, in.data(), out.data());
  kernels.activate_backward(activation, {1, kCount, kCount, kCount}, in.data(), grad.data(),
                            again.data(), copy.data());
  for (int64_t i = 0; i < kCount; ++i) {
    const double x = in[i], h = 1e-5;
    const double wanted = activation_reference(x, activation);
    const double slope =
        (activation_reference(x + h, activation) - activation_reference(x - h, activation)) /
        (2 * h);
    ASSERT_NEAR(out[i], wanted, tolerance * (1 + std::abs(wanted)))
        << kernels.name << " activation " << static_cast<int>(activation) << " at " << x;
    ASSERT_NEAR(grad[i], 2 * slope, (tolerance + 1e-8) * 4 * (1 + std::abs(slope)))
        << kernels.name << " activation " << static_cast<int>(activation) << " at " << x;
    ASSERT_EQ(out[i], again[i]);
    ASSERT_EQ(grad[i], copy[i]);
  }
  // As one column or two, whose rows share factors by threes.
  for (const auto& [width, for_all] :
       {std::pair<int64_t, bool>{1, false}, {2, false}, {1, true}, {2, true}}) {
    const int64_t rows = kCount / width, own = for_all ? 1 : width;
    std::vector<Scalar> factors((rows / 3 + 1) * own), scaled(rows * width);
    for (size_t i = 0; i < factors.size(); ++i) factors[i] = static_cast<Scalar>(i % 7) - Scalar(2);
    kernels.scale_by_slope(activation, {rows, width, width, width}, in.data(),
                           {factors.data(), 3, for_all}, scaled.data());
    for (int64_t i = 0; i < rows * width; ++i) {
      const double factor = factors[i / width / 3 * own + (for_all ? 0 : i % width)];
      const double wanted = factor * grad[i] / 2;
      ASSERT_NEAR(scaled[i], wanted, (tolerance + 1e-8) * 4 * (1 + std::abs(wanted)))
          << kernels.name << " activation " << static_cast<int>(activation) << " at " << in[i];
    }
  }
}

TEST(Tile, ActivationsAndTheirSlopesAreExact) {
  for (size_t i = 0; i < kActivationNames.size(); ++i) {
    for (const auto* k : tables<float>()) check_activation(*k, static_cast<Activation>(i), 6e-7);
    for (const auto* k : tables<double>()) check_activation(*k, static_cast<Activation>(i), 1e-14);
  }
}

TEST(Tile, ActivationsOfPanelsAreThoseOfRows) {
  constexpr int64_t kRows = 9;
  for (const auto* kernels : tables<float>()) {
    const int64_t columns = kernels->columns, stride = columns + 5;
    std::vector<float> in(kRows * stride), panel(in.size(), -7.0F), row(in.size(), -7.0F);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(3 * element(2, i));
    for (size_t a = 0; a < kActivationNames.size(); ++a) {
      const auto activation = static_cast<Activation>(a);
      kernels->activate(activation, {kRows, columns, stride, stride}, in.data(), panel.data());
      for (int64_t r = 0; r < kRows; ++r) {
        kernels->activate(activation, {1, columns, stride, stride}, in.data() + r * stride,
                          row.data() + r * stride);
      }
      EXPECT_EQ(panel, row) << kernels->name << " " << kActivationNames[a];
    }
  }
}

TEST(Tile, ActivationsOfExtremeValues) {
  const std::vector<float> in = {-INFINITY, -1e4F, -90.0F, 90.0F, 1e4F, NAN};
  for (const auto* kernels : tables<float>()) {
    for (const auto activation : {Activation::gelu_tanh, Activation::gelu}) {
      std::vector<float> out(in.size());
      kernels->activate(activation, {1, 6, 6, 6}, in.data(), out.data());
      for (int i = 1; i < 3; ++i) EXPECT_NEAR(out[i], 0, 1e-30) << kernels->name << in[i];
      EXPECT_EQ(out[3], 90.0F);
      EXPECT_EQ(out[4], 1e4F);
      EXPECT_TRUE(std::isnan(out[5])) << kernels->name;
    }
  }
}

/// Groups of rows with weights of their own: products, and what goes back to the weights.
template <class Scalar>
void check_groups(const TileKernels<Scalar>& kernels, int64_t rows, int64_t depth,
                  int64_t columns) {
  constexpr int64_t kGroups = 21, kWeights = 3, kAt = 3;
  const int64_t stride = kernels.group_stride(columns), size = (depth + 1) * stride;
  const auto filled = [](int64_t count, int64_t seed) {
    std::vector<Scalar> numbers(count);
    for (int64_t i = 0; i < count; ++i) numbers[i] = static_cast<Scalar>(element(seed, i));
    return numbers;
  };
  const std::vector<Scalar> x = filled(kGroups * rows * depth, 1);
  const std::vector<Scalar> b = filled(kAt + kWeights * size, 2);
  const std::vector<Scalar> grad = filled(kGroups * rows * stride, 3);
  std::vector<Scalar> c(kGroups * rows * columns + 1, Scalar(-7));
  std::vector<Scalar> sums(kAt + kWeights * size, Scalar(1));
  std::vector<const Scalar*> from, weights;
  std::vector<Scalar*> to;
  const auto own = [](int64_t g) { return g < 9 ? 0 : g % kWeights; };
  for (int64_t g = 0; g < kGroups; ++g) {
    from.push_back(x.data() + (kGroups - 1 - g) * rows * depth);
    weights.push_back(b.data() + own(g) * size);
    to.push_back(sums.data() + own(g) * size);
  }
  kernels.multiply_groups(
      {from.data(), weights.data(), kAt, kGroups, rows, depth, columns, from.data(), c.data()});
  kernels.add_products(
      {from.data(), to.data(), kAt, kGroups, rows, depth, columns, nullptr, grad.data()});
  std::vector<double> wanted(kWeights * size, 1.0);
  for (int64_t i = 0; i < kGroups * rows; ++i) {
    const int64_t g = i / rows;
    for (int64_t j = 0; j < columns; ++j) {
      double sum = weights[g][kAt + depth * stride + j];
      for (int64_t k = 0; k < depth; ++k) {
        const double row = from[g][(i % rows) * depth + k];
        sum += row * weights[g][kAt + k * stride + j];
        wanted[own(g) * size + k * stride + j] += row * grad[i * stride + j];
      }
      wanted[own(g) * size + depth * stride + j] += grad[i * stride + j];
      ASSERT_NEAR(c[i * columns + j], sum, sizeof(Scalar) == 4 ? 2e-5 : 1e-12) << kernels.name;
    }
  }
  EXPECT_EQ(c.back(), Scalar(-7));
  for (int64_t i = 0; i < kWeights * size; ++i) {
    if (i % stride >= columns) continue;
    ASSERT_NEAR(sums[kAt + i], wanted[i], sizeof(Scalar) == 4 ? 2e-5 : 1e-12)
        << kernels.name << " " << i;
  }
}

TEST(Tile, GroupsOfRowsHaveWeightsOfTheirOwn) {
  for (int64_t rows = 1; rows < 8; ++rows) {
    for (const int64_t depth : {1, 2, 7}) {
      for (const auto* k : tables<float>()) {
        for (int64_t columns = 1; columns <= k->columns; columns += 5) {
          check_groups(*k, rows, depth, columns);
        }
      }
      for (const auto* k : tables<double>()) check_groups(*k, rows, depth, k->columns);
    }
  }
}

TEST(Tile, TheTableIsOneThatTheProcessorRuns) {
  bool known = false;
  for (const auto* kernels : tables<float>()) known |= kernels == &tile_kernels<float>();
  EXPECT_TRUE(known);
}

}  // namespace
}  // namespace moesaic::ops
