// SPDX-License-Identifier: Apache-2.0
// The loops behind tile.h, written with the compiler's vectors. tile_<instruction set>.cpp includes
// this file once, with the flags of that set, and says how large vectors and tiles are:
//   MOESAIC_VECTOR_BYTES  of one register
//   MOESAIC_TILE_ROWS     of C that are kept in registers, two vectors each, or one in a panel that
//                         is half as wide
// Everything is in an unnamed namespace and calls no inline function of another header, so that no
// code for a newer processor can reach callers on an older one through the linker.
#pragma once

#if MOESAIC_VECTOR_BYTES == 64
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tile.h"

namespace moesaic::ops {
namespace {

template <class Scalar>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float type __attribute__((vector_size(MOESAIC_VECTOR_BYTES), may_alias));
  typedef float unaligned __attribute__((vector_size(MOESAIC_VECTOR_BYTES), aligned(4), may_alias));
};
template <>
struct VectorOf<double> {
  typedef double type __attribute__((vector_size(MOESAIC_VECTOR_BYTES), may_alias));
  typedef double unaligned
      __attribute__((vector_size(MOESAIC_VECTOR_BYTES), aligned(8), may_alias));
};

template <class Scalar>
constexpr int kLanes = MOESAIC_VECTOR_BYTES / sizeof(Scalar);
template <class Scalar>
constexpr int kColumns = 2 * kLanes<Scalar>;

template <class Scalar>
typename VectorOf<Scalar>::type load(const Scalar* from) {
  return *reinterpret_cast<const typename VectorOf<Scalar>::unaligned*>(from);
}
template <class Scalar>
void store(Scalar* to, typename VectorOf<Scalar>::type value) {
  *reinterpret_cast<typename VectorOf<Scalar>::unaligned*>(to) = value;
}

// One tile: the operands of a panel product for `kRows` of its rows.
template <class Scalar>
struct Tile {
  int64_t depth;
  const Scalar* a;
  int64_t a_stride;
  Scalar* b;
  const Scalar* unpacked;  // rows of b before they were packed,
  int64_t unpacked_stride;
  const Scalar* bias;
  Scalar* c;
  int64_t c_stride;
  bool accumulate, stream;
  Prefetch next;          // with its base where to go on,
  int64_t next_byte;      // so many bytes into the row,
  int64_t next_per_step;  // so many lines for four steps of the depth
};

constexpr int64_t kLine = 64;

#if MOESAIC_VECTOR_BYTES == 64
inline void store_past_caches(float* to, VectorOf<float>::type value) {
  __builtin_ia32_movntps512(to, value);
}
inline void store_past_caches(double* to, VectorOf<double>::type value) {
  __builtin_ia32_movntpd512(to, value);
}
#else
template <class Scalar>
void store_past_caches(Scalar* to, typename VectorOf<Scalar>::type value) {
  store(to, value);
}
#endif

// Where kPacks, b is read unpacked, and packed for the tiles that follow: stores come for free
// beside so many products.
template <class Scalar, int kRows, bool kByColumns, bool kPacks, int kVectors>
void multiply_tile(Tile<Scalar>& tile) {
  using Vector = typename VectorOf<Scalar>::type;
  constexpr int kWidth = kColumns<Scalar>;
  constexpr bool kBoth = kVectors == 2;
  Vector sum[kRows][2];
  const Scalar* start = tile.accumulate ? tile.c : tile.bias;
  const int64_t start_stride = tile.accumulate ? tile.c_stride : 0;
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    sum[i][0] = load(start + i * start_stride);
    if (kBoth) sum[i][1] = load(start + i * start_stride + kLanes<Scalar>);
  }
  Scalar* b = tile.b;
  const Scalar* from = tile.unpacked;
  const int64_t from_stride = tile.unpacked_stride;
  const int64_t stride = tile.a_stride;
  // Three rows share a pointer: an address is pointer + {0, 1, 2} strides + step.
  const Scalar* a0 = tile.a;
  const Scalar* a3 = a0 + 3 * stride;
  const Scalar* a6 = a0 + 6 * stride;
  const Scalar* a9 = a0 + 9 * stride;
  const Scalar* a12 = a0 + 12 * stride;
  const auto step = [&](int at) __attribute__((always_inline)) {
    const Scalar* row = kPacks ? from : b + at * kWidth;
    const Vector b0 = load(row);
    const Vector b1 = kBoth ? load(row + kLanes<Scalar>) : Vector{};
    if constexpr (kPacks) {
      store(b + at * kWidth, b0);
      store(b + at * kWidth + kLanes<Scalar>, b1);
      from += from_stride;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      Scalar factor;
      if constexpr (kByColumns) {
        factor = a0[at * stride + i];
      } else {
        const Scalar* base = i < 3 ? a0 : i < 6 ? a3 : i < 9 ? a6 : i < 12 ? a9 : a12;
        factor = base[(i % 3) * stride + at];
      }
      sum[i][0] += factor * b0;
      if (kBoth) sum[i][1] += factor * b1;
    }
  };
  const auto advance = [&](int steps) __attribute__((always_inline)) {
    b += steps * kWidth;
    const int64_t by = kByColumns ? steps * stride : steps;
    a0 += by;
    a3 += by;
    a6 += by;
    a9 += by;
    a12 += by;
  };
  const char* next = tile.next.base;
  int64_t next_byte = tile.next_byte;
  int64_t k = 0;
  for (; k + 4 <= tile.depth; k += 4) {
    for (int64_t p = 0; p < tile.next_per_step; ++p) {
      __builtin_prefetch(next + next_byte, 0, 2);
      next_byte += kLine;
      if (next_byte >= tile.next.bytes) {
        next_byte = 0;
        next += tile.next.stride;
      }
    }
    step(0);
    step(1);
    step(2);
    step(3);
    advance(4);
  }
  for (; k < tile.depth; ++k) {
    step(0);
    advance(1);
  }
  tile.next.base = next;
  tile.next_byte = next_byte;
  if (tile.stream) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      store_past_caches(tile.c + i * tile.c_stride, sum[i][0]);
      if (kBoth) store_past_caches(tile.c + i * tile.c_stride + kLanes<Scalar>, sum[i][1]);
    }
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    store(tile.c + i * tile.c_stride, sum[i][0]);
    if (kBoth) store(tile.c + i * tile.c_stride + kLanes<Scalar>, sum[i][1]);
  }
}

template <class Scalar, bool kByColumns, bool kPacks, int kVectors, int... kRows>
struct TileTable {
  static constexpr void (*get[])(Tile<Scalar>&) = {
      multiply_tile<Scalar, kRows, kByColumns, kPacks, kVectors>...};
};
// Entry r - 1 takes r rows.
#if MOESAIC_TILE_ROWS == 14
template <class Scalar, bool kByColumns, bool kPacks, int kVectors = 2>
using Tiles =
    TileTable<Scalar, kByColumns, kPacks, kVectors, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
#else
template <class Scalar, bool kByColumns, bool kPacks, int kVectors = 2>
using Tiles = TileTable<Scalar, kByColumns, kPacks, kVectors, 1, 2, 3, 4, 5, 6>;
#endif

template <class Scalar>
void pack(const PanelSource<Scalar>& from, Scalar* panel, Scalar* sums);

// Is the panel left to the first tile? Otherwise it is packed now, where it is not yet.
template <class Scalar>
bool packs_on_the_way(const PanelProduct<Scalar>& p) {
  if (p.unpacked == nullptr) return false;
  if (!p.unpacked->transposed && !p.a_by_columns && p.columns == kColumns<Scalar> && p.rows > 0) {
    return true;
  }
  pack<Scalar>(*p.unpacked, p.b, nullptr);
  return false;
}

// Calls use(tile, rows, first) for tiles of equal height: eleven rows twice keep the adders busier
// than fourteen and eight.
template <class Scalar, class Use>
inline __attribute__((always_inline)) void for_tiles(const PanelProduct<Scalar>& p,
                                                     Tile<Scalar>& tile, Use use) {
  const int64_t tiles = (p.rows + MOESAIC_TILE_ROWS - 1) / MOESAIC_TILE_ROWS;
  if (tiles == 0) return;
  // Never beyond the last row; the last few lines may be left to the hardware.
  const int64_t fours = p.depth / 4;
  int64_t lines = p.next.rows * ((p.next.bytes + kLine - 1) / kLine);
  tile.next_per_step = fours == 0 ? 0 : (lines + tiles * fours - 1) / (tiles * fours);
  const int64_t height = p.rows / tiles;
  const int64_t taller = p.rows - height * tiles;  // of the tiles have a row more
  int64_t begin = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t rows = height + (t < taller ? 1 : 0);
    tile.a = p.a + begin * (p.a_by_columns ? 1 : p.a_stride);
    if (lines < tile.next_per_step * fours) tile.next_per_step = lines / fours;
    lines -= tile.next_per_step * fours;
    use(tile, begin, rows);
    begin += rows;
  }
}

// A panel whose last columns are not of C: tiles of whole vectors lie in `edge` meanwhile.
template <class Scalar, class Table>
__attribute__((noinline)) void multiply_edge(const PanelProduct<Scalar>& p, Tile<Scalar>& tile,
                                             Table table) {
  constexpr int kWidth = kColumns<Scalar>;
  alignas(64) Scalar edge[MOESAIC_TILE_ROWS * kWidth];
  alignas(64) Scalar bias[kWidth] = {};
  for (int64_t j = 0; p.bias != nullptr && j < p.columns; ++j) bias[j] = p.bias[j];
  tile.bias = bias;
  tile.c = edge;
  tile.c_stride = kWidth;
  tile.stream = false;
  for_tiles(p, tile, [&](Tile<Scalar>& at, int64_t begin, int64_t rows) {
    Scalar* c = p.c + begin * p.c_stride;
    for (int64_t i = 0; p.accumulate && i < rows; ++i) {
      for (int64_t j = 0; j < kWidth; ++j) {
        edge[i * kWidth + j] = j < p.columns ? c[i * p.c_stride + j] : Scalar(0);
      }
    }
    table[rows - 1](at);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < p.columns; ++j) c[i * p.c_stride + j] = edge[i * kWidth + j];
    }
  });
}

template <class Scalar>
void multiply(const PanelProduct<Scalar>& p) {
  constexpr int kWidth = kColumns<Scalar>;
  alignas(64) static constexpr Scalar kNoBias[kWidth] = {};
  const bool aligned =
      reinterpret_cast<uintptr_t>(p.c) % kLine == 0 && p.c_stride * sizeof(Scalar) % kLine == 0;
  const bool packs = packs_on_the_way(p);
  const auto* table =
      p.a_by_columns ? Tiles<Scalar, true, false>::get : Tiles<Scalar, false, false>::get;
  Tile<Scalar> tile{p.depth,
                    nullptr,
                    p.a_stride,
                    p.b,
                    packs ? p.unpacked->data : nullptr,
                    packs ? p.unpacked->stride : 0,
                    p.bias == nullptr ? kNoBias : p.bias,
                    nullptr,
                    p.c_stride,
                    p.accumulate,
                    p.stream && aligned,
                    p.next,
                    0,
                    0};
  if (p.columns == kLanes<Scalar>) {
    table =
        p.a_by_columns ? Tiles<Scalar, true, false, 1>::get : Tiles<Scalar, false, false, 1>::get;
  } else if (p.columns < kWidth) {
    return multiply_edge(p, tile, table);
  }
  const auto* next = packs ? Tiles<Scalar, false, true>::get : table;
  for_tiles(p, tile, [&](Tile<Scalar>& at, int64_t begin, int64_t rows) {
    at.c = p.c + begin * p.c_stride;
    next[rows - 1](at);
    next = table;
  });
  if (tile.stream)
    __atomic_thread_fence(__ATOMIC_SEQ_CST);  // streamed lines are there for all threads
}

template <class Scalar>
void pack_rows(const PanelSource<Scalar>& from, Scalar* panel) {
  constexpr int kWidth = kColumns<Scalar>;
  if (from.columns == kWidth) {
    for (int64_t k = 0; k < from.depth; ++k) {
      const Scalar* row = from.data + k * from.stride;
      store(panel + k * kWidth, load(row));
      store(panel + k * kWidth + kLanes<Scalar>, load(row + kLanes<Scalar>));
    }
    return;
  }
  for (int64_t k = 0; k < from.depth; ++k) {
    const Scalar* row = from.data + k * from.stride;
    for (int64_t j = 0; j < kWidth; ++j) {
      panel[k * kWidth + j] = j < from.columns ? row[j] : Scalar(0);
    }
  }
}

// A square of kLanes x kLanes is turned over in registers: at each round, lanes whose numbers
// differ in one bit change places between the rows whose numbers differ in that bit.
template <class Scalar>
void transpose_square(const Scalar* from, int64_t stride, Scalar* to) {
  using Vector = typename VectorOf<Scalar>::type;
  constexpr int n = kLanes<Scalar>;
  typedef std::conditional_t<sizeof(Scalar) == 4, int32_t, int64_t> Lane;
  typedef Lane Mask __attribute__((vector_size(MOESAIC_VECTOR_BYTES)));
  Vector row[n];
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) row[i] = load(from + i * stride);
#pragma GCC unroll 4
  for (int bit = 1; bit < n; bit *= 2) {
    Mask low, high;
#pragma GCC unroll 16
    for (int lane = 0; lane < n; ++lane) {
      low[lane] = (lane & bit) == 0 ? lane : n + (lane ^ bit);
      high[lane] = (lane & bit) == 0 ? (lane ^ bit) : n + lane;
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) {
      if ((i & bit) != 0) continue;
      const Vector a = row[i], b = row[i | bit];
      row[i] = __builtin_shuffle(a, b, low);
      row[i | bit] = __builtin_shuffle(a, b, high);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) store(to + i * kColumns<Scalar>, row[i]);
}

template <class Scalar>
void pack_transposed(const PanelSource<Scalar>& from, Scalar* panel) {
  constexpr int kWidth = kColumns<Scalar>;
  constexpr int n = kLanes<Scalar>;
  int64_t k = 0;
  if (from.columns == kWidth) {
    for (; k + n <= from.depth; k += n) {
      transpose_square(from.data + k, from.stride, panel + k * kWidth);
      transpose_square(from.data + k + n * from.stride, from.stride, panel + k * kWidth + n);
    }
  }
  for (; k < from.depth; ++k) {
    for (int64_t j = 0; j < kWidth; ++j) {
      panel[k * kWidth + j] = j < from.columns ? from.data[j * from.stride + k] : Scalar(0);
    }
  }
}

template <class Scalar>
void pack(const PanelSource<Scalar>& from, Scalar* panel, Scalar* sums) {
  from.transposed ? pack_transposed(from, panel) : pack_rows(from, panel);
  if (sums == nullptr) return;
  constexpr int kWidth = kColumns<Scalar>;
  typename VectorOf<Scalar>::type first = {}, second = {};
  for (int64_t k = 0; k < from.depth; ++k) {
    first += load(panel + k * kWidth);
    second += load(panel + k * kWidth + kLanes<Scalar>);
  }
  alignas(64) Scalar all[kWidth];
  store(all, first);
  store(all + kLanes<Scalar>, second);
  for (int64_t j = 0; j < from.columns; ++j) sums[j] = all[j];
}

#include "tile_activation.inl"
#include "tile_groups.inl"

template <class Scalar>
constexpr TileKernels<Scalar> kTable = {
    MOESAIC_TILE_NAME,      kColumns<Scalar>,        multiply<Scalar>,
    pack<Scalar>,           activate<Scalar>,        activate_backward<Scalar>,
    scale_by_slope<Scalar>, multiply_groups<Scalar>, add_products<Scalar>};

}  // namespace
}  // namespace moesaic::ops
