// SPDX-License-Identifier: Apache-2.0
// As tile_kernels.h, with pairs of bfloat16 in place of single factors: one instruction adds two
// products to each of 16 sums.
#define MOESAIC_TILE_NAME "avx512"
#define MOESAIC_VECTOR_BYTES 64
#define MOESAIC_TILE_ROWS 14
#include <immintrin.h>

#include "bfloat16.h"
#include "tile_kernels.h"

namespace moesaic::ops {
namespace {

constexpr int kPairColumns = 32;

float widen(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float wide;
  __builtin_memcpy(&wide, &bits, sizeof wide);
  return wide;
}

struct PairTile {
  int64_t pairs;
  const uint16_t* a;
  int64_t a_stride;
  const uint16_t* b;
  const float* start;
  int64_t start_stride;
  float* c;
  int64_t c_stride;
};

template <int kRows>
void multiply_pairs(const PairTile& tile) {
  __m512 sum[kRows][2];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    sum[i][0] = _mm512_loadu_ps(tile.start + i * tile.start_stride);
    sum[i][1] = _mm512_loadu_ps(tile.start + i * tile.start_stride + 16);
  }
  const uint16_t* b = tile.b;
  const int64_t stride = tile.a_stride;
  const uint16_t* a0 = tile.a;
  const uint16_t* a3 = a0 + 3 * stride;
  const uint16_t* a6 = a0 + 6 * stride;
  const uint16_t* a9 = a0 + 9 * stride;
  const uint16_t* a12 = a0 + 12 * stride;
  for (int64_t k = 0; k < tile.pairs; ++k) {
    const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b);
    const __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + 32);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const uint16_t* base = i < 3 ? a0 : i < 6 ? a3 : i < 9 ? a6 : i < 12 ? a9 : a12;
      int32_t pair;
      __builtin_memcpy(&pair, base + (i % 3) * stride, sizeof pair);
      const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
      sum[i][0] = _mm512_dpbf16_ps(sum[i][0], b0, both);
      sum[i][1] = _mm512_dpbf16_ps(sum[i][1], b1, both);
    }
    b += 64;
    a0 += 2;
    a3 += 2;
    a6 += 2;
    a9 += 2;
    a12 += 2;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    _mm512_storeu_ps(tile.c + i * tile.c_stride, sum[i][0]);
    _mm512_storeu_ps(tile.c + i * tile.c_stride + 16, sum[i][1]);
  }
}

template <int... kRows>
struct PairTable {
  static constexpr void (*get[])(const PairTile&) = {multiply_pairs<kRows>...};
};
using PairTiles = PairTable<1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;

void multiply_panel(const Bfloat16Product& p) {
  alignas(64) float edge[MOESAIC_TILE_ROWS * kPairColumns];
  alignas(64) float bias[kPairColumns] = {};
  for (int64_t j = 0; p.bias != nullptr && j < p.columns; ++j) bias[j] = widen(p.bias[j]);
  const bool whole = p.columns == kPairColumns;
  const int64_t tiles = (p.rows + MOESAIC_TILE_ROWS - 1) / MOESAIC_TILE_ROWS;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t begin = p.rows * t / tiles;
    const int64_t count = p.rows * (t + 1) / tiles - begin;
    float* c = p.c + begin * p.c_stride;
    for (int64_t i = 0; !whole && p.accumulate && i < count; ++i) {
      for (int64_t j = 0; j < kPairColumns; ++j) {
        edge[i * kPairColumns + j] = j < p.columns ? c[i * p.c_stride + j] : 0.0f;
      }
    }
    float* to = whole ? c : edge;
    const int64_t stride = whole ? p.c_stride : kPairColumns;
    PairTiles::get[count - 1]({p.depth / 2, p.a + begin * p.a_stride, p.a_stride, p.b,
                               p.accumulate ? to : bias, p.accumulate ? stride : 0, to, stride});
    for (int64_t i = 0; !whole && i < count; ++i) {
      for (int64_t j = 0; j < p.columns; ++j) c[i * p.c_stride + j] = edge[i * kPairColumns + j];
    }
  }
}

// panel[k / 2][j][k % 2] = matrix(k, j).
void pack_pairs(const uint16_t* data, int64_t stride, bool transposed, int64_t depth, int64_t count,
                uint16_t* panel) {
  if (!transposed && count == kPairColumns) {
    for (int64_t k = 0; k < depth; k += 2, panel += 2 * kPairColumns) {
      for (int half = 0; half < 2; ++half) {
        const auto sixteen = [&](int64_t row) {
          return _mm512_cvtepu16_epi32(_mm256_loadu_si256(
              reinterpret_cast<const __m256i*>(data + row * stride + 16 * half)));
        };
        _mm512_storeu_si512(panel + 32 * half,
                            _mm512_or_si512(sixteen(k), _mm512_slli_epi32(sixteen(k + 1), 16)));
      }
    }
    return;
  }
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t j = 0; j < kPairColumns; ++j) {
      const uint16_t value =
          j >= count ? 0 : (transposed ? data[j * stride + k] : data[k * stride + j]);
      panel[(k / 2 * kPairColumns + j) * 2 + k % 2] = value;
    }
  }
}

void activate_and_round(Activation activation, int64_t rows, int64_t columns, float* in,
                        int64_t in_stride, uint16_t* out, int64_t out_stride) {
  activate<float>(activation, {rows, columns, in_stride, in_stride}, in, in);
  for (int64_t i = 0; i < rows; ++i) {
    const float* x = in + i * in_stride;
    uint16_t* y = out + i * out_stride;
    int64_t j = 0;
    for (; j + 16 <= columns; j += 16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + j),
                          (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + j)));
    }
    for (; j < columns; ++j) {
      y[j] =
          static_cast<uint16_t>(_mm_extract_epi16((__m128i)_mm_cvtneps_pbh(_mm_set_ss(x[j])), 0));
    }
  }
}

constexpr Bfloat16Kernels kBfloat16 = {kPairColumns, multiply_panel, pack_pairs,
                                       activate_and_round};

}  // namespace

const Bfloat16Kernels* bfloat16_kernels_avx512() {
  return &kBfloat16;
}

}  // namespace moesaic::ops
