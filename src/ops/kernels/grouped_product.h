// SPDX-License-Identifier: Apache-2.0
// Products of each expert's rows with its weights, by tiles in shared memory. Every sum adds its
// terms in index order, so results do not depend on the order of the tiles.
#pragma once

#include <cstdint>

#include "block.h"
#include "number.h"
#include "row_tiles.h"

namespace moesaic::ops::kernels {

/// A tile of Rows x Columns sums, Depth terms at a time, OwnRows x OwnColumns sums per thread.
template <int Rows, int Columns, int Depth, int OwnRows, int OwnColumns>
struct TileShape {
  static constexpr int kRows = Rows, kColumns = Columns, kDepth = Depth;
  static constexpr int kOwnRows = OwnRows, kOwnColumns = OwnColumns;
  static constexpr int kAcross = Columns / OwnColumns, kDown = Rows / OwnRows;
  static constexpr int kThreads = kAcross * kDown;
  // Padding by four numbers keeps vectors of four aligned and columns in different banks.
  static constexpr int kLeftStride = Rows + 4, kRightStride = Columns + 4;
  static_assert(OwnRows % 4 == 0 && OwnColumns % 4 == 0, "threads own fours");

  /// Returns a thread's row; its vectors of four are interleaved with those of its neighbours.
  static MOESAIC_INLINE int row(int thread, int own) {
    return own / 4 * (kDown * 4) + thread / kAcross * 4 + own % 4;
  }
  static MOESAIC_INLINE int column(int thread, int own) {
    return own / 4 * (kAcross * 4) + thread % kAcross * 4 + own % 4;
  }
};

using LargeTile = TileShape<128, 64, 8, 8, 4>;
using SmallTile = TileShape<64, 64, 16, 4, 4>;

/// Sums of one thread, and the loop over the depth. `S` is the type of the sums.
template <class S, class Tile>
struct TileProduct {
  struct Sums {
    S at[Tile::kOwnRows][Tile::kOwnColumns];
  };

  static MOESAIC_INLINE int64_t shared_bytes() {
    return static_cast<int64_t>(sizeof(S)) * Tile::kDepth *
           (Tile::kLeftStride + Tile::kRightStride);
  }

  /// Adds products of left(row, depth) and right(depth, column), which return 0 outside of their
  /// matrices. The flags say which index of each factor is contiguous in memory.
  template <bool LeftRowsAreNeighbours, bool RightColumnsAreNeighbours, class Block, class Left,
            class Right, class Local>
  static MOESAIC_INLINE void multiply(Block& block, int64_t depth, const Left& left,
                                      const Right& right, Local& sums) {
    S* const a = block.template shared<S>(0);
    S* const b = a + Tile::kDepth * Tile::kLeftStride;
    for (int64_t from = 0; from < depth; from += Tile::kDepth) {
      block.each([&](int thread) {
        load<Tile::kRows, Tile::kLeftStride, LeftRowsAreNeighbours>(
            thread, a, [&](int row, int k) { return left(row, from + k); });
        load<Tile::kColumns, Tile::kRightStride, RightColumnsAreNeighbours>(
            thread, b, [&](int column, int k) { return right(from + k, column); });
      });
      block.each([&](int thread) { add_products(thread, a, b, sums[thread]); });
    }
  }

  /// Passes the sums row by row through shared memory to take(row, column, sum), so that
  /// neighbouring threads take neighbouring columns.
  template <class Block, class Local, class Take>
  static MOESAIC_INLINE void hand_out(Block& block, Local& sums, const Take& take) {
    S* const slab = block.template shared<S>(0);
    static_assert(
        Tile::kDown * Tile::kColumns <= Tile::kDepth * (Tile::kLeftStride + Tile::kRightStride),
        "the slab lies where the factors were");
    MOESAIC_NO_UNROLL
    for (int own = 0; own < Tile::kOwnRows; ++own) {
      block.each([&](int thread) { put_row(thread, own, sums[thread], slab); });
      block.each([&](int thread) {
        MOESAIC_NO_UNROLL
        for (int i = thread; i < Tile::kDown * Tile::kColumns; i += Tile::kThreads) {
          take(Tile::row(i / Tile::kColumns * Tile::kAcross, own), i % Tile::kColumns, slab[i]);
        }
      });
    }
  }

 private:
  template <int Extent, int Stride, bool ExtentIsNear, class Get>
  static MOESAIC_INLINE void load(int thread, S* to, const Get& get) {
    constexpr int kEach = Extent * Tile::kDepth / Tile::kThreads;
    static_assert(kEach * Tile::kThreads == Extent * Tile::kDepth, "threads load alike");
    S own[kEach];
    MOESAIC_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int place = thread + i * Tile::kThreads;
      own[i] = ExtentIsNear ? get(place % Extent, place / Extent)
                            : get(place / Tile::kDepth, place % Tile::kDepth);
    }
    MOESAIC_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int place = thread + i * Tile::kThreads;
      const int across = ExtentIsNear ? place % Extent : place / Tile::kDepth;
      const int k = ExtentIsNear ? place / Extent : place % Tile::kDepth;
      to[k * Stride + across] = own[i];
    }
  }

  static MOESAIC_INLINE void add_products(int thread, const S* a, const S* b, Sums& sums) {
    MOESAIC_UNROLL
    for (int k = 0; k < Tile::kDepth; ++k) {
      S left[Tile::kOwnRows], right[Tile::kOwnColumns];
      MOESAIC_UNROLL
      for (int i = 0; i < Tile::kOwnRows; ++i) {
        left[i] = a[k * Tile::kLeftStride + Tile::row(thread, i)];
      }
      MOESAIC_UNROLL
      for (int j = 0; j < Tile::kOwnColumns; ++j) {
        right[j] = b[k * Tile::kRightStride + Tile::column(thread, j)];
      }
      MOESAIC_UNROLL
      for (int i = 0; i < Tile::kOwnRows; ++i) {
        MOESAIC_UNROLL
        for (int j = 0; j < Tile::kOwnColumns; ++j) sums.at[i][j] += left[i] * right[j];
      }
    }
  }

  /// Writes one of a thread's rows of sums to the slab. The loop runs over all rows since sums live
  /// in registers, which a runtime index cannot address.
  static MOESAIC_INLINE void put_row(int thread, int own, const Sums& sums, S* slab) {
    S* const to = slab + thread / Tile::kAcross * Tile::kColumns;
    MOESAIC_UNROLL
    for (int i = 0; i < Tile::kOwnRows; ++i) {
      if (i != own) continue;
      MOESAIC_UNROLL
      for (int j = 0; j < Tile::kOwnColumns; ++j) to[Tile::column(thread, j)] = sums.at[i][j];
    }
  }
};

/// Computes epilogue(sum over k of a[r, k] w_e[k, n]) for the rows r of every expert e. Transposed:
/// w_e[n, k].
template <class T, class Tile, bool Transposed, class Epilogue>
struct RowsTimesWeights {
  const T *a, *w;  // [rows, depth], [experts, depth, columns] or [experts, columns, depth]
  const int32_t* offsets;
  int32_t experts;
  int64_t rows, depth, columns;
  Epilogue epilogue;

  using Scalar = T;
  using Product = TileProduct<Sum<T>, Tile>;

  MOESAIC_INLINE int64_t column_tiles() const {
    return divide_up<int64_t>(columns, Tile::kColumns);
  }
  MOESAIC_INLINE int64_t blocks() const {
    return column_tiles() * row_tile_bound(rows, experts, Tile::kRows);
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const RowTile tile = row_tile(offsets, experts, Tile::kRows, block.index() / column_tiles());
    if (tile.empty()) return;
    const int64_t first = block.index() % column_tiles() * Tile::kColumns;
    const T* const weights = w + tile.expert * depth * columns;
    typename Block::template Local<typename Product::Sums> sums(block);
    Product::template multiply<false, !Transposed>(
        block, depth,
        [&](int row, int64_t k) {
          const int64_t r = tile.begin + row;
          return r < tile.end && k < depth ? widen(a[r * depth + k]) : Sum<T>(0);
        },
        [&](int64_t k, int column) {
          const int64_t n = first + column;
          if (k >= depth || n >= columns) return Sum<T>(0);
          return widen(weights[Transposed ? n * depth + k : k * columns + n]);
        },
        sums);
    Product::hand_out(block, sums, [&](int row, int column, Sum<T> sum) {
      const int64_t r = tile.begin + row, n = first + column;
      Sum<T> one[1] = {sum};
      if (r < tile.end && n < columns) epilogue.template apply<1>(tile.expert, r, n, one);
    });
  }
};

/// Computes out_e[i, j] = sum over the rows r of expert e of left[r, i] right[r, j], 0 for an
/// expert without rows.
template <class T, class Tile>
struct RowsTimesRows {
  const T *left, *right;  // [rows, p], [rows, q]
  const int32_t* offsets;
  int32_t experts;
  int64_t p, q;
  T* out;  // [experts, p, q]

  using Scalar = T;
  using Product = TileProduct<Sum<T>, Tile>;

  MOESAIC_INLINE int64_t across() const { return divide_up<int64_t>(q, Tile::kColumns); }
  MOESAIC_INLINE int64_t down() const { return divide_up<int64_t>(p, Tile::kRows); }
  MOESAIC_INLINE int64_t blocks() const { return experts * across() * down(); }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const int64_t expert = block.index() / (across() * down());
    const int64_t first_i = block.index() / across() % down() * Tile::kRows;
    const int64_t first_j = block.index() % across() * Tile::kColumns;
    const int64_t begin = offsets[expert], count = offsets[expert + 1] - begin;
    typename Block::template Local<typename Product::Sums> sums(block);
    Product::template multiply<true, true>(
        block, count,
        [&](int row, int64_t k) {
          const int64_t i = first_i + row;
          return k < count && i < p ? widen(left[(begin + k) * p + i]) : Sum<T>(0);
        },
        [&](int64_t k, int column) {
          const int64_t j = first_j + column;
          return k < count && j < q ? widen(right[(begin + k) * q + j]) : Sum<T>(0);
        },
        sums);
    Product::hand_out(block, sums, [&](int row, int column, Sum<T> sum) {
      const int64_t i = first_i + row, j = first_j + column;
      if (i < p && j < q) out[(expert * p + i) * q + j] = Number<T>::narrow(sum);
    });
  }
};

}  // namespace moesaic::ops::kernels
