// SPDX-License-Identifier: Apache-2.0
// Passes over the rows of experts between the library's products: bias and activation, their
// gradients with the sums over an expert's rows, zeros for experts without rows.
#pragma once

#include "activation.h"

namespace moesaic::ops::kernels {

// Tiles of the rows of each expert are found on the device and without a list: those of expert e
// begin at number offsets[e] / height + e, so that numbers ascend, at most one per expert is
// unused, and rows / height + experts of them suffice for any offsets.

/// Rows [begin, end) of one expert; empty for an unused number.
struct RowTile {
  int32_t expert, begin, end;

  MOESAIC_INLINE bool empty() const { return begin >= end; }
};

MOESAIC_INLINE int64_t row_tile_bound(int64_t rows, int64_t experts, int height) {
  return experts > 0 ? rows / height + experts : 0;
}

MOESAIC_INLINE int64_t first_row_tile(const int32_t* offsets, int32_t expert, int height) {
  return offsets[expert] / height + expert;
}

MOESAIC_INLINE RowTile row_tile(const int32_t* offsets, int32_t experts, int height,
                                int64_t number) {
  const auto first = [&](int32_t expert) { return first_row_tile(offsets, expert, height); };
  const int32_t expert = last_begun(experts, number, first);
  const int64_t end = offsets[expert + 1];
  const int64_t begin = min<int64_t>(offsets[expert] + (number - first(expert)) * height, end);
  return {expert, static_cast<int32_t>(begin),
          static_cast<int32_t>(min<int64_t>(begin + height, end))};
}

constexpr int kPassThreads = 256;
constexpr int kPassLanes = 32;  // Neighbouring pieces of a row that a block takes.
constexpr int kPassRows = 128;  // Rows of a tile.

/// Rows of experts in a matrix [rows, columns], cut into one block per tile of rows and strip of
/// columns. A thread owns `Count` columns of an expert, so that it reads a bias once and adds up
/// its rows by itself.
struct ExpertPass {
  const int32_t* offsets;  // [experts + 1]
  int32_t experts;
  int64_t rows, columns;  // `rows` is the bound of offsets[experts].

  MOESAIC_INLINE int64_t tiles() const { return row_tile_bound(rows, experts, kPassRows); }
  MOESAIC_INLINE int64_t strips(int count) const {
    return divide_up<int64_t>(columns, kPassLanes * count);
  }
  MOESAIC_INLINE int64_t blocks(int count) const { return tiles() * strips(count); }
  MOESAIC_INLINE int64_t tile_number(int count, int64_t block) const {
    return block / strips(count);
  }
  MOESAIC_INLINE RowTile tile(int count, int64_t block) const {
    return row_tile(offsets, experts, kPassRows, tile_number(count, block));
  }
  /// Returns the first column of a thread; it may lie past the last of the matrix.
  MOESAIC_INLINE int64_t column(int count, int64_t block, int thread) const {
    return (block % strips(count) * kPassLanes + thread % kPassLanes) * count;
  }
  static MOESAIC_INLINE int32_t first_row(const RowTile& tile, int thread) {
    return tile.begin + thread / kPassLanes;
  }
  static constexpr int32_t kStep = kPassThreads / kPassLanes;
};

/// Computes to = act(from + bias); `to` may be `from`.
template <class T, int Count, Act Kind>
struct ActivateRows {
  ExpertPass pass;
  const T *from, *bias;  // [rows, columns], [experts, columns]
  T* to;                 // [rows, columns]

  MOESAIC_INLINE int64_t blocks() const { return pass.blocks(Count); }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const RowTile tile = pass.tile(Count, block.index());
    if (tile.empty()) return;
    block.each([&](int thread) {
      const int64_t j = pass.column(Count, block.index(), thread);
      if (j >= pass.columns) return;
      const Piece<T, Count> add = read<T, Count>(bias + tile.expert * pass.columns + j);
      for (int32_t r = pass.first_row(tile, thread); r < tile.end; r += pass.kStep) {
        Piece<T, Count> piece = read<T, Count>(from + r * pass.columns + j);
        MOESAIC_UNROLL
        for (int c = 0; c < Count; ++c) {
          const auto at = activated<Kind, T>(widen(piece.at[c]) + widen(add.at[c]));
          piece.at[c] = Number<T>::narrow(at.value);
        }
        write<T, Count>(to + r * pass.columns + j, piece);
      }
    });
  }
};

/// Sums of a thread over the rows of its columns.
template <class T, int Count>
struct ColumnSums {
  Sum<T> at[Count];
};

/// Adds up the sums of the threads with the same columns, in the order of their rows, into
/// partial[tile, columns]. `shared` holds Count numbers of every thread.
template <class T, int Count, class Block, class Sums>
MOESAIC_INLINE void store_sums(Block& block, const ExpertPass& pass, Sums& sums, Sum<T>* partial) {
  Sum<T>* const shared = block.template shared<Sum<T>>(0);
  block.each([&](int thread) {
    MOESAIC_UNROLL
    for (int c = 0; c < Count; ++c) shared[c * kPassThreads + thread] = sums[thread].at[c];
  });
  block.each([&](int thread) {
    const int64_t j = pass.column(Count, block.index(), thread);
    if (thread >= kPassLanes || j >= pass.columns) return;
    const int64_t number = pass.tile_number(Count, block.index());
    for (int c = 0; c < Count; ++c) {
      Sum<T> sum = 0;
      for (int i = thread; i < kPassThreads; i += kPassLanes) sum += shared[c * kPassThreads + i];
      partial[number * pass.columns + j + c] = sum;
    }
  });
}

template <class T, int Count>
constexpr int64_t sums_bytes() {
  return static_cast<int64_t>(sizeof(Sum<T>)) * Count * kPassThreads;
}

/// Replaces grad = d loss / d act(h), h = from + bias, by d loss / d h; computes active = act(h)
/// and the partial sums of d loss / d h over each tile's rows.
template <class T, int Count, Act Kind>
struct DifferentiateRows {
  ExpertPass pass;
  const T *from, *bias;  // [rows, columns], [experts, columns]
  T *grad, *active;      // [rows, columns]
  Sum<T>* partial;       // [tiles, columns]

  MOESAIC_INLINE int64_t blocks() const { return pass.blocks(Count); }
  static constexpr int64_t shared_bytes() { return sums_bytes<T, Count>(); }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const RowTile tile = pass.tile(Count, block.index());
    if (tile.empty()) return;
    typename Block::template Local<ColumnSums<T, Count>> sums(block);
    block.each([&](int thread) {
      const int64_t j = pass.column(Count, block.index(), thread);
      if (j >= pass.columns) return;
      const Piece<T, Count> add = read<T, Count>(bias + tile.expert * pass.columns + j);
      for (int32_t r = pass.first_row(tile, thread); r < tile.end; r += pass.kStep) {
        const int64_t place = r * pass.columns + j;
        Piece<T, Count> value = read<T, Count>(from + place);
        Piece<T, Count> slope = read<T, Count>(grad + place);
        MOESAIC_UNROLL
        for (int c = 0; c < Count; ++c) {
          const auto at = activated<Kind, T>(widen(value.at[c]) + widen(add.at[c]));
          const Sum<T> product = widen(slope.at[c]) * at.slope;
          sums[thread].at[c] += product;
          value.at[c] = Number<T>::narrow(at.value);
          slope.at[c] = Number<T>::narrow(product);
        }
        write<T, Count>(active + place, value);
        write<T, Count>(grad + place, slope);
      }
    });
    store_sums<T, Count>(block, pass, sums, partial);
  }
};

/// Computes partial[tile, j] = sum over the tile's rows of from[r, j].
template <class T, int Count>
struct SumTiles {
  ExpertPass pass;
  const T* from;    // [rows, columns]
  Sum<T>* partial;  // [tiles, columns]

  MOESAIC_INLINE int64_t blocks() const { return pass.blocks(Count); }
  static constexpr int64_t shared_bytes() { return sums_bytes<T, Count>(); }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const RowTile tile = pass.tile(Count, block.index());
    if (tile.empty()) return;
    typename Block::template Local<ColumnSums<T, Count>> sums(block);
    block.each([&](int thread) {
      const int64_t j = pass.column(Count, block.index(), thread);
      if (j >= pass.columns) return;
      for (int32_t r = pass.first_row(tile, thread); r < tile.end; r += pass.kStep) {
        const Piece<T, Count> piece = read<T, Count>(from + r * pass.columns + j);
        MOESAIC_UNROLL
        for (int c = 0; c < Count; ++c) sums[thread].at[c] += widen(piece.at[c]);
      }
    });
    store_sums<T, Count>(block, pass, sums, partial);
  }
};

/// Computes to[e, j] = sum of an expert's partial sums, in the order of its rows.
template <class T>
struct SumPartials {
  ExpertPass pass;
  const Sum<T>* partial;  // [tiles, columns]
  T* to;                  // [experts, columns]

  MOESAIC_INLINE int64_t blocks() const {
    return divide_up<int64_t>(pass.experts * pass.columns, kPassThreads);
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    block.each([&](int thread) {
      const int64_t i = block.index() * kPassThreads + thread;
      if (i >= pass.experts * pass.columns) return;
      const auto expert = static_cast<int32_t>(i / pass.columns);
      const int64_t rows = pass.offsets[expert + 1] - pass.offsets[expert];
      const Sum<T>* const first = partial +
                                  first_row_tile(pass.offsets, expert, kPassRows) * pass.columns +
                                  i % pass.columns;
      Sum<T> sum = 0;
      MOESAIC_UNROLL_4
      for (int64_t tile = 0; tile < divide_up<int64_t>(rows, kPassRows); ++tile) {
        sum += first[tile * pass.columns];
      }
      to[i] = Number<T>::narrow(sum);
    });
  }
};

/// Zeros the elements of experts without rows, which the library's grouped GEMM does not write.
template <class T>
struct ClearIdleExperts {
  T* to;  // [experts, size]
  const int32_t* offsets;
  int32_t experts;
  int64_t size;

  static constexpr int64_t kBlocksEach = 64;
  MOESAIC_INLINE int64_t blocks() const { return experts * kBlocksEach; }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const int64_t expert = block.index() / kBlocksEach;
    if (offsets[expert] != offsets[expert + 1]) return;
    block.each([&](int thread) {
      const int64_t first = block.index() % kBlocksEach * kPassThreads + thread;
      for (int64_t i = first; i < size; i += kBlocksEach * kPassThreads) {
        to[expert * size + i] = Number<T>::narrow(0);
      }
    });
  }
};

}  // namespace moesaic::ops::kernels
