// SPDX-License-Identifier: Apache-2.0
// The products for a Hopper GPU's tensor cores, run on a model of the chip against float64 loops.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "ops/kernels/tensor_core_product.h"
#include "support/hopper_model.h"

namespace moesaic::ops::kernels {
namespace {

using moesaic::testing::OperandModel;
using moesaic::testing::place_of_sum;
using moesaic::testing::run_on_model;
using Numbers = std::vector<BFloat16>;

constexpr uint16_t kUntouched = 0x7F81;  // a NaN that no rounding gives

/// Experts without rows, with one, with more than a tile, and rows past the last.
const std::vector<int32_t> kStarts = {0, 0, 140, 141, 141, 260};
constexpr int32_t kCount = 5;
constexpr int64_t kBound = 300;

/// Small integers: their sums are exact in any order.
Numbers small_integers(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> draw(-2, 2);
  Numbers out(static_cast<size_t>(count));
  for (auto& number : out) number = to_bfloat16(static_cast<float>(draw(generator)));
  return out;
}
Numbers untouched(int64_t count) {
  return Numbers(static_cast<size_t>(count), BFloat16{kUntouched});
}
/// Rows that no expert has hold NaN.
Numbers rows_of(int64_t width, uint32_t seed) {
  Numbers out = small_integers(kBound * width, seed);
  for (size_t i = static_cast<size_t>(kStarts.back() * width); i < out.size(); ++i) {
    out[i] = BFloat16{0x7FC0};
  }
  return out;
}
double at(const Numbers& numbers, int64_t place) {
  return widen(numbers[static_cast<size_t>(place)]);
}
BFloat16 rounded(double value) {
  return to_bfloat16(static_cast<float>(value));
}

/// sum over k of a[r, k] w_e[k, n], or w_e[n, k].
double product_at(const Numbers& a, const Numbers& w, int64_t row, int32_t expert, int64_t column,
                  int64_t depth, int64_t columns, bool transposed) {
  double sum = 0;
  for (int64_t k = 0; k < depth; ++k) {
    const int64_t place = transposed ? column * depth + k : k * columns + column;
    sum += at(a, row * depth + k) * at(w, expert * depth * columns + place);
  }
  return sum;
}

/// check(expert, row, column) for every sum, and nothing else was written.
template <class Check>
void for_sums(const std::vector<const Numbers*>& written, int64_t columns, const Check& check) {
  for (int32_t e = 0; e < kCount; ++e) {
    for (int64_t r = kStarts[static_cast<size_t>(e)]; r < kStarts[static_cast<size_t>(e) + 1];
         ++r) {
      for (int64_t n = 0; n < columns; ++n) {
        check(e, r, n);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  for (const Numbers* numbers : written) {
    for (size_t i = static_cast<size_t>(kStarts.back() * columns); i < numbers->size(); ++i) {
      ASSERT_EQ((*numbers)[i].bits, kUntouched) << "past the last row, number " << i;
    }
  }
}

template <Sharing How, bool Transposed>
void expect_plain(int64_t depth, int64_t columns) {
  SCOPED_TRACE("depth " + std::to_string(depth) + ", columns " + std::to_string(columns));
  const Numbers a = rows_of(depth, 1), w = small_integers(kCount * depth * columns, 2);
  for (const int64_t blocks : {1, 3, 1000}) {
    Numbers out = untouched(kBound * columns);
    const CoreRowsTimesWeights<Plain<BFloat16>, How, Transposed> product{
        kStarts.data(), kCount, kBound, depth, columns, {out.data(), columns}};
    run_on_model(product, a.data(), w.data(), blocks);
    for_sums({&out}, columns, [&](int32_t e, int64_t r, int64_t n) {
      const double wanted = product_at(a, w, r, e, n, depth, columns, Transposed);
      ASSERT_EQ(out[static_cast<size_t>(r * columns + n)].bits, rounded(wanted).bits)
          << "expert " << e << ", row " << r << ", column " << n;
    });
  }
}

TEST(TensorCore, RowsTimesWeightsEqualPlainLoops) {
  for (const auto& [depth, columns] : {std::pair{8, 8}, {136, 264}, {320, 128}}) {
    expect_plain<Sharing::in_turns, false>(depth, columns);
    expect_plain<Sharing::in_turns, true>(depth, columns);
    expect_plain<Sharing::together, false>(depth, columns);
    expect_plain<Sharing::together, true>(depth, columns);
  }
}

template <Sharing How>
void expect_rows_times_rows(int64_t p, int64_t q) {
  SCOPED_TRACE("p " + std::to_string(p) + ", q " + std::to_string(q));
  const Numbers left = rows_of(p, 3), right = rows_of(q, 4);
  for (const int64_t blocks : {1, 4, 1000}) {
    Numbers out = untouched(kCount * p * q);
    const CoreRowsTimesRows<How> product{kStarts.data(), kCount, kBound, p, q, {out.data(), q}};
    run_on_model(product, left.data(), right.data(), blocks);
    for (int32_t e = 0; e < kCount; ++e) {
      for (int64_t i = 0; i < p; ++i) {
        for (int64_t j = 0; j < q; ++j) {
          double sum = 0;
          for (int64_t r = kStarts[static_cast<size_t>(e)]; r < kStarts[static_cast<size_t>(e) + 1];
               ++r) {
            sum += at(left, r * p + i) * at(right, r * q + j);
          }
          ASSERT_EQ(out[static_cast<size_t>((e * p + i) * q + j)].bits, rounded(sum).bits)
              << "expert " << e << ", " << i << ", " << j;
        }
      }
    }
  }
}

TEST(TensorCore, RowsTimesRowsEqualPlainLoops) {
  expect_rows_times_rows<Sharing::in_turns>(136, 72);
  expect_rows_times_rows<Sharing::together>(136, 72);
  expect_rows_times_rows<Sharing::in_turns>(8, 264);
  expect_rows_times_rows<Sharing::together>(200, 264);
}

template <class Body>
void for_activations(const Body& body) {
  for (const auto kind :
       {Act::relu, Act::gelu_tanh, Act::gelu, Act::cubic, Act::identity, Act::celu, Act::tanh}) {
    with_activation(kind, [&](auto constant) { body(kind, constant); });
  }
}

void expect_rounded(BFloat16 found, double wanted) {
  // A bfloat16 has 8 bits; sums and activations run in float32.
  ASSERT_NEAR(widen(found), wanted, 0.0042 * std::max(1e-3, std::fabs(wanted)));
}

TEST(TensorCore, BiasAndActivationEndTheSums) {
  constexpr int64_t kDepth = 72, kColumns = 136;
  const Numbers a = rows_of(kDepth, 5), w = small_integers(kCount * kDepth * kColumns, 6);
  Numbers bias = small_integers(kCount * kColumns, 7);
  for (auto& number : bias) number = rounded(0.25 + widen(number));
  for_activations([&](Act kind, auto constant) {
    for (const bool keep : {true, false}) {
      Numbers hidden = untouched(kBound * kColumns), active = untouched(kBound * kColumns);
      const CoreRowsTimesWeights<AddBiasActivate<BFloat16>, Sharing::in_turns, false> product{
          kStarts.data(),
          kCount,
          kBound,
          kDepth,
          kColumns,
          {keep ? hidden.data() : nullptr, active.data(), bias.data(), kColumns, kind}};
      run_on_model(product, a.data(), w.data(), 2);
      for_sums({&hidden, &active}, kColumns, [&](int32_t e, int64_t r, int64_t n) {
        const auto place = static_cast<size_t>(r * kColumns + n);
        const double wanted =
            product_at(a, w, r, e, n, kDepth, kColumns, false) + at(bias, e * kColumns + n);
        if (keep) {
          ASSERT_EQ(hidden[place].bits, rounded(wanted).bits);
        } else {
          ASSERT_EQ(hidden[place].bits, kUntouched);
        }
        expect_rounded(active[place], activated<decltype(constant)::value>(wanted).value);
      });
    }
  });
  Numbers y = untouched(kBound * kColumns);
  const CoreRowsTimesWeights<AddBias<BFloat16>, Sharing::together, false> product{
      kStarts.data(), kCount, kBound, kDepth, kColumns, {y.data(), bias.data(), kColumns}};
  run_on_model(product, a.data(), w.data(), 2);
  for_sums({&y}, kColumns, [&](int32_t e, int64_t r, int64_t n) {
    const double wanted =
        product_at(a, w, r, e, n, kDepth, kColumns, false) + at(bias, e * kColumns + n);
    ASSERT_EQ(y[static_cast<size_t>(r * kColumns + n)].bits, rounded(wanted).bits);
  });
}

TEST(TensorCore, TheActivationsGradientEndsTheSums) {
  constexpr int64_t kDepth = 136, kColumns = 72;
  const Numbers grad = rows_of(kDepth, 8), w = small_integers(kCount * kDepth * kColumns, 9);
  Numbers hidden = rows_of(kColumns, 10);
  for (auto& number : hidden) number = rounded(0.375 + 0.5 * widen(number));
  for_activations([&](Act kind, auto constant) {
    Numbers grad_hidden = untouched(kBound * kColumns), active = untouched(kBound * kColumns);
    const CoreRowsTimesWeights<ActivationGradient<BFloat16>, Sharing::in_turns, true> product{
        kStarts.data(), kCount,
        kBound,         kDepth,
        kColumns,       {hidden.data(), grad_hidden.data(), active.data(), kColumns, kind}};
    run_on_model(product, grad.data(), w.data(), 3);
    for_sums({&grad_hidden, &active}, kColumns, [&](int32_t e, int64_t r, int64_t n) {
      const int64_t place = r * kColumns + n;
      const auto point = activated<decltype(constant)::value>(at(hidden, place));
      const double sum = product_at(grad, w, r, e, n, kDepth, kColumns, true);
      expect_rounded(grad_hidden[static_cast<size_t>(place)], sum * point.slope);
      expect_rounded(active[static_cast<size_t>(place)], point.value);
    });
  });
}

TEST(TensorCore, DescriptorsHoldAddressDistancesAndSwizzle) {
  // Lines of terms: eight rows are 1024 bytes apart; four steps of 32 bytes within a line.
  using Rows = StageOperand<Near::depth, 128>;
  EXPECT_EQ(Rows::descriptor(0x400, 0, 0), 0x4000004000010040ULL);
  EXPECT_EQ(Rows::descriptor(0x400, 64, 3), 0x4000004000010246ULL);
  EXPECT_EQ(Rows::kBytes, 16384);
  // Blocks of 64 columns, 8192 bytes apart; 16 terms are 2048 bytes.
  using Columns = StageOperand<Near::extent, 256>;
  EXPECT_EQ(Columns::descriptor(0x400, 0, 0), 0x4000004002000040ULL);
  EXPECT_EQ(Columns::descriptor(0x400, 128, 3), 0x40000040020005C0ULL);
  EXPECT_EQ(Columns::kBoxes, 4);
  // 18 bits of an address count.
  EXPECT_EQ(OperandModel(Rows::descriptor(0x32C00, 0, 0)).start, 0x32C00U);
}

TEST(TensorCore, ThreadsSumsCoverTheirRowsAndColumnsOnce) {
  std::set<std::pair<int, int>> seen;
  for (int thread = 0; thread < 128; ++thread) {
    for (int index = 0; index < CoreSums::kCount; ++index) {
      const std::pair place{CoreSums::row(thread, index), CoreSums::column(thread, index)};
      EXPECT_EQ(place, place_of_sum(thread, index));
      seen.insert(place);
    }
  }
  EXPECT_EQ(seen.size(), 64U * 128U);
  EXPECT_EQ(*seen.rbegin(), std::pair(63, 127));
}

TEST(TensorCore, TheRingsParityChangesWithEachRound) {
  StageRing<3> ring;
  for (const auto& [stage, parity] : {std::pair{0, 0U}, {1, 0U}, {2, 0U}, {0, 1U}, {1, 1U}}) {
    EXPECT_EQ(ring.stage(), stage);
    EXPECT_EQ(ring.parity(), parity);
    ring.advance(1);
  }
  ring.advance(4);
  EXPECT_EQ(ring.stage(), 0);
  EXPECT_EQ(ring.parity(), 1U);
}

}  // namespace
}  // namespace moesaic::ops::kernels
