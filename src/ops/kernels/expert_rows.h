// SPDX-License-Identifier: Apache-2.0
// Passes over the rows of experts beside the products: the epilogue of a product as a separate
// pass, sums over an expert's rows, zeros for experts without rows.
#pragma once

#include <cstdint>

#include "block.h"
#include "number.h"
#include "row_tiles.h"

namespace moesaic::ops::kernels {

constexpr int kPassThreads = 256;
constexpr int kPassRows = 32;
constexpr int kSumRows = 256;

/// Applies epilogue(from) to every row of every expert. `from` may alias the epilogue's output.
template <class T, int Count, class Epilogue>
struct EpiloguePass {
  const T* from;
  const int32_t* offsets;
  int32_t experts;
  int64_t rows, columns;
  int lanes;
  Epilogue epilogue;

  MOESAIC_INLINE int64_t blocks() const { return row_tile_bound(rows, experts, kPassRows); }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const RowTile tile = row_tile(offsets, experts, kPassRows, block.index());
    if (tile.empty()) return;
    block.each([&](int thread) {
      const int64_t lane = thread % lanes;
      for (int64_t r = tile.begin + thread / lanes; r < tile.end; r += block.threads() / lanes) {
        for (int64_t j = lane * Count; j < columns; j += lanes * Count) {
          const Piece<T, Count> piece = read<T, Count>(from + r * columns + j);
          Sum<T> sums[Count];
          MOESAIC_UNROLL
          for (int c = 0; c < Count; ++c) sums[c] = widen(piece.at[c]);
          epilogue.template apply<Count>(tile.expert, r, j, sums);
        }
      }
    });
  }
};

/// Computes partial[tile, j] = sum over the tile's rows of from[r, j].
template <class T>
struct SumTiles {
  const T* from;  // [rows, columns]
  const int32_t* offsets;
  int32_t experts;
  int64_t rows, columns;
  Sum<T>* partial;  // [tiles, columns]

  MOESAIC_INLINE int64_t tiles() const { return row_tile_bound(rows, experts, kSumRows); }
  MOESAIC_INLINE int64_t across() const { return divide_up<int64_t>(columns, kPassThreads); }
  MOESAIC_INLINE int64_t blocks() const { return tiles() * across(); }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const int64_t number = block.index() / across();
    const RowTile tile = row_tile(offsets, experts, kSumRows, number);
    if (tile.empty()) return;
    block.each([&](int thread) {
      const int64_t j = block.index() % across() * kPassThreads + thread;
      if (j >= columns) return;
      Sum<T> sum = 0;
      MOESAIC_UNROLL_4
      for (int64_t r = tile.begin; r < tile.end; ++r) sum += widen(from[r * columns + j]);
      partial[number * columns + j] = sum;
    });
  }
};

/// Computes out[e, j] = sum of an expert's partial sums, in the order of its rows.
template <class T>
struct SumPartials {
  const Sum<T>* partial;
  const int32_t* offsets;
  int32_t experts;
  int64_t columns;
  T* out;  // [experts, columns]

  MOESAIC_INLINE int64_t blocks() const {
    return divide_up<int64_t>(experts * columns, kPassThreads);
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    block.each([&](int thread) {
      const int64_t i = block.index() * kPassThreads + thread;
      if (i >= experts * columns) return;
      const auto expert = static_cast<int32_t>(i / columns);
      const int64_t rows = offsets[expert + 1] - offsets[expert];
      const Sum<T>* const first =
          partial + first_row_tile(offsets, expert, kSumRows) * columns + i % columns;
      Sum<T> sum = 0;
      MOESAIC_UNROLL_4
      for (int64_t tile = 0; tile < divide_up<int64_t>(rows, kSumRows); ++tile) {
        sum += first[tile * columns];
      }
      out[i] = Number<T>::narrow(sum);
    });
  }
};

/// Zeros the elements of experts without rows, which the library's product leaves undefined.
template <class T>
struct ClearIdleExperts {
  T* to;  // [experts, size]
  const int32_t* offsets;
  int32_t experts;
  int64_t size;
  int64_t blocks_each;

  MOESAIC_INLINE int64_t blocks() const { return experts * blocks_each; }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const int64_t expert = block.index() / blocks_each;
    if (offsets[expert] != offsets[expert + 1]) return;
    block.each([&](int thread) {
      const int64_t first = block.index() % blocks_each * kPassThreads + thread;
      for (int64_t i = first; i < size; i += blocks_each * kPassThreads) {
        to[expert * size + i] = Number<T>::narrow(0);
      }
    });
  }
};

}  // namespace moesaic::ops::kernels
