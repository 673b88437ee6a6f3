// SPDX-License-Identifier: Apache-2.0
// Dispatch, combine and their gradients. Several lanes share a row and move it in vectors of 16
// bytes (`Count` numbers at once, or 1 where widths or addresses are not aligned). Sums run over a
// token's rows in the order of its choices.
#pragma once

#include "number.h"

namespace moesaic::ops::kernels {

constexpr int kMoveThreads = 256;

/// Lane and row of a thread of a launch.
struct RowLane {
  int64_t row;
  int lane;

  template <class Block>
  static MOESAIC_INLINE RowLane of(const Block& block, int thread, int lanes) {
    return {block.index() * (block.threads() / lanes) + thread / lanes, thread % lanes};
  }
};

/// Zeros to[begin] to to[end - 1], shared among all threads of a launch.
template <class T, int Count, class Block>
MOESAIC_INLINE void zero_between(const Block& block, int thread, T* to, int64_t begin,
                                 int64_t end) {
  const int64_t stride = block.count() * block.threads() * Count;
  const int64_t first = (block.index() * block.threads() + thread) * Count;
  for (int64_t i = begin + first; i < end; i += stride) write_zeros<T, Count>(to + i);
}

/// Copies from[t] to every row of token t, and zeros the rows past the last one. The launch walks
/// tokens, so that `from` is read once.
template <class T, int Count>
struct DispatchRows {
  const T* from;
  const int32_t *token_offsets, *token_row;
  T* to;
  int64_t tokens, max_rows, width;
  int lanes;

  static MOESAIC_INLINE int64_t shared_bytes(int) { return 0; }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    block.each([&](int thread) {
      const RowLane at = RowLane::of(block, thread, lanes);
      if (at.row < tokens) copy(at);
      zero_between<T, Count>(block, thread, to, token_offsets[tokens] * width, max_rows * width);
    });
  }

 private:
  /// Copies a token. Several loads precede the first store, since the compiler must assume that
  /// `from` and `to` alias.
  MOESAIC_INLINE void copy(const RowLane& at) const {
    constexpr int kPieces = 4;
    const int32_t begin = token_offsets[at.row], end = token_offsets[at.row + 1];
    if (begin == end) return;
    const T* const in = from + at.row * width;
    const int64_t step = static_cast<int64_t>(lanes) * Count;
    for (int64_t j = at.lane * Count; j < width; j += kPieces * step) {
      Piece<T, Count> pieces[kPieces];
      MOESAIC_UNROLL
      for (int i = 0; i < kPieces; ++i) {
        if (j + i * step < width) pieces[i] = read<T, Count>(in + j + i * step);
      }
      MOESAIC_NO_UNROLL
      for (int32_t r = begin; r < end; ++r) {
        T* const out = to + token_row[r] * width;
        MOESAIC_UNROLL
        for (int i = 0; i < kPieces; ++i) {
          if (j + i * step < width) write<T, Count>(out + j + i * step, pieces[i]);
        }
      }
    }
  }
};

/// Biases [experts, width] of the rows' experts, which are searched for in offsets [experts + 1]; a
/// null `values` stands for zeros.
template <class T>
struct RowBias {
  const T* values = nullptr;
  const int32_t* offsets = nullptr;
  int32_t experts = 0;

  /// Adds the bias of a row's columns [column, column + Count) to `to`.
  template <int Count>
  MOESAIC_INLINE void add(int64_t row, int64_t width, int64_t column, Sum<T> (&to)[Count]) const {
    if (values == nullptr) return;
    const int64_t expert = last_begun(experts, row, [&](int32_t e) { return offsets[e]; });
    const Piece<T, Count> piece = read<T, Count>(values + expert * width + column);
    MOESAIC_UNROLL
    for (int c = 0; c < Count; ++c) to[c] += widen(piece.at[c]);
  }
};

/// Reads columns [column, column + Count) of a row with its bias.
template <int Count, class T>
MOESAIC_INLINE void read_biased(const T* rows, const RowBias<T>& bias, int64_t row, int64_t width,
                                int64_t column, Sum<T> (&to)[Count]) {
  const Piece<T, Count> piece = read<T, Count>(rows + row * width + column);
  MOESAIC_UNROLL
  for (int c = 0; c < Count; ++c) to[c] = widen(piece.at[c]);
  bias.add(row, width, column, to);
}

/// Computes to[t] = sum over the rows of t of gate[row] * (from[row] + its expert's bias); without
/// gates, the plain sum.
template <class T, int Count>
struct SumRows {
  const T* from;
  const Sum<T>* gate;  // `gate` may be null.
  const int32_t *token_offsets, *token_row;
  T* to;
  int64_t tokens, width;
  int lanes;
  RowBias<T> bias = {};

  static MOESAIC_INLINE int64_t shared_bytes(int) { return 0; }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    block.each([&](int thread) {
      const RowLane at = RowLane::of(block, thread, lanes);
      if (at.row >= tokens) return;
      const int32_t begin = token_offsets[at.row], end = token_offsets[at.row + 1];
      for (int64_t j = at.lane * Count; j < width; j += lanes * Count)
        sum_piece(at.row, begin, end, j);
    });
  }

 private:
  MOESAIC_INLINE void sum_piece(int64_t token, int32_t begin, int32_t end, int64_t column) const {
    Sum<T> sum[Count] = {};
    MOESAIC_UNROLL_4
    for (int32_t i = begin; i < end; ++i) {
      const int64_t row = token_row[i];
      const Sum<T> weight = gate == nullptr ? Sum<T>(1) : gate[row];
      Sum<T> x[Count];
      read_biased(from, bias, row, width, column, x);
      MOESAIC_UNROLL
      for (int c = 0; c < Count; ++c) sum[c] += weight * x[c];
    }
    Piece<T, Count> out;
    MOESAIC_UNROLL
    for (int c = 0; c < Count; ++c) out.at[c] = Number<T>::narrow(sum[c]);
    write<T, Count>(to + token * width + column, out);
  }
};

/// Computes the gradients of combine: grad_rows[row] = gate[row] * grad[t] and grad_gate[row] =
/// grad[t] . (rows[row] + its expert's bias) for each row of token t; zeros for rows without a
/// token.
template <class T, int Count>
struct CombineBackward {
  const T *grad, *rows;
  const Sum<T>* gate;
  const int32_t *token_offsets, *token_row;
  T* grad_rows;
  Sum<T>* grad_gate;
  int64_t tokens, max_rows, width;
  int lanes;
  RowBias<T> bias = {};

  static MOESAIC_INLINE int64_t shared_bytes(int threads) {
    return static_cast<int64_t>(sizeof(Sum<T>)) * threads + 16;
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    Sum<T>* const part = block.template shared<Sum<T>>(16);
    int32_t* const longest = block.template shared<int32_t>(0);
    block.each([&](int thread) {
      if (thread == 0) *longest = 0;
    });
    block.each([&](int thread) {
      const RowLane at = RowLane::of(block, thread, lanes);
      if (at.lane == 0 && at.row < tokens) {
        block.atomic_max(longest, token_offsets[at.row + 1] - token_offsets[at.row]);
      }
    });
    const int32_t turns = block.broadcast(longest);
    for (int32_t i = 0; i < turns; ++i) {
      block.each([&](int thread) { part[thread] = scale_and_multiply(block, thread, i); });
      block.each([&](int thread) { add_up(block, thread, i, part); });
    }
    block.each([&](int thread) { clear_unused(block, thread); });
  }

 private:
  /// Returns the i-th row of a token, -1 past its last.
  MOESAIC_INLINE int64_t row_of(const RowLane& at, int32_t i) const {
    if (at.row >= tokens) return -1;
    const int32_t place = token_offsets[at.row] + i;
    return place < token_offsets[at.row + 1] ? token_row[place] : -1;
  }

  template <class Block>
  MOESAIC_INLINE Sum<T> scale_and_multiply(const Block& block, int thread, int32_t i) const {
    const RowLane at = RowLane::of(block, thread, lanes);
    const int64_t row = row_of(at, i);
    if (row < 0) return 0;
    const Sum<T> weight = gate[row];
    Sum<T> product = 0;
    for (int64_t j = at.lane * Count; j < width; j += lanes * Count) {
      const Piece<T, Count> g = read<T, Count>(grad + at.row * width + j);
      Sum<T> x[Count];
      read_biased(rows, bias, row, width, j, x);
      Piece<T, Count> out;
      MOESAIC_UNROLL
      for (int c = 0; c < Count; ++c) {
        out.at[c] = Number<T>::narrow(weight * widen(g.at[c]));
        product += widen(g.at[c]) * x[c];
      }
      write<T, Count>(grad_rows + row * width + j, out);
    }
    return product;
  }

  template <class Block>
  MOESAIC_INLINE void add_up(const Block& block, int thread, int32_t i, const Sum<T>* part) const {
    const RowLane at = RowLane::of(block, thread, lanes);
    const int64_t row = at.lane == 0 ? row_of(at, i) : -1;
    if (row < 0) return;
    Sum<T> sum = 0;
    for (int lane = 0; lane < lanes; ++lane) sum += part[thread + lane];
    grad_gate[row] = sum;
  }

  template <class Block>
  MOESAIC_INLINE void clear_unused(const Block& block, int thread) const {
    const int64_t filled = token_offsets[tokens];
    zero_between<Sum<T>, 1>(block, thread, grad_gate, filled, max_rows);
    zero_between<T, Count>(block, thread, grad_rows, filled * width, max_rows * width);
  }
};

/// Zeros the rows past *filled.
template <class T, int Count>
struct ClearRows {
  T* to;
  const int32_t* filled;
  int64_t rows, width;

  MOESAIC_INLINE int64_t blocks() const {
    constexpr int64_t kMaxBlocks = 1056;
    return min(divide_up<int64_t>(rows * width, kMoveThreads * Count), kMaxBlocks);
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    block.each([&](int thread) {
      zero_between<T, Count>(block, thread, to, *filled * width, rows * width);
    });
  }
};

}  // namespace moesaic::ops::kernels
