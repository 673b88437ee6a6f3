// SPDX-License-Identifier: Apache-2.0
// Layouts of operands (product.h). All of them move words of one size: the numbers themselves, or
// pairs of numbers of two bytes.
#include <algorithm>

#include "product.h"
#include "vector_clones.h"

namespace moesaic::ops {
namespace {

constexpr int64_t kSquare = 8;  // Side of the squares that are transposed in registers.

template <class Word>
using Vector __attribute__((vector_size(kSquare * sizeof(Word)))) = Word;

/// Asks for the row that will be read `kAhead` rows later. Processors do not foresee the next of
/// short rows that lie far apart.
template <class Word>
MOESAIC_IN_CLONE void fetch_ahead(const Word* row, int64_t stride, int64_t columns) {
  constexpr int64_t kAhead = 16, kLine = 64 / sizeof(Word);
  const Word* const ahead = row + kAhead * stride;
  for (int64_t j = 0; j < columns; j += kLine) __builtin_prefetch(ahead + j);
}

template <class Word>
MOESAIC_IN_CLONE void transpose_square(Vector<Word> (&v)[kSquare]) {
  Vector<Word> w[kSquare];
  for (int i = 0; i < kSquare; i += 2) {
    w[i] = __builtin_shufflevector(v[i], v[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    w[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < kSquare; i += 4) {
    for (int j = 0; j < 2; ++j) {
      v[i + j] = __builtin_shufflevector(w[i + j], w[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      v[i + j + 2] = __builtin_shufflevector(w[i + j], w[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int j = 0; j < 4; ++j) {
    w[j] = __builtin_shufflevector(v[j], v[j + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    w[j + 4] = __builtin_shufflevector(v[j], v[j + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int j = 0; j < kSquare; ++j) v[j] = w[j];
}

/// Rows of words as they lie.
template <class Word>
struct PlainRows {
  const Word* from;
  int64_t stride;

  MOESAIC_IN_CLONE Word word(int64_t row, int64_t column) const {
    return from[row * stride + column];
  }
  MOESAIC_IN_CLONE void load(int64_t row, int64_t column, Vector<Word>& to) const {
    __builtin_memcpy(&to, from + row * stride + column, sizeof to);
  }
};

/// Rows of pairs: row r has the numbers of rows 2 r and 2 r + 1, of which the last may be missing.
struct PairedRows {
  const uint16_t* from;
  int64_t stride, rows;

  MOESAIC_IN_CLONE uint32_t word(int64_t row, int64_t column) const {
    const uint16_t* low = from + 2 * row * stride + column;
    return *low | (2 * row + 1 < rows ? static_cast<uint32_t>(low[stride]) << 16 : 0);
  }
  MOESAIC_IN_CLONE void load(int64_t row, int64_t column, Vector<uint32_t>& to) const {
    for (int64_t i = 0; i < kSquare; ++i) to[i] = word(row, column + i);
  }
};

/// to[c, r] = word r, c of `from`, whose rows are [0, rows).
template <class Word, class Rows>
MOESAIC_IN_CLONE void transpose_words(const Rows& from, int64_t rows, int64_t columns, Word* to,
                                      int64_t to_stride) {
  const int64_t whole_rows = rows / kSquare * kSquare, whole = columns / kSquare * kSquare;
  for (int64_t row = 0; row < whole_rows; row += kSquare) {
    for (int64_t column = 0; column < whole; column += kSquare) {
      Vector<Word> v[kSquare];
      for (int64_t i = 0; i < kSquare; ++i) from.load(row + i, column, v[i]);
      transpose_square<Word>(v);
      for (int64_t j = 0; j < kSquare; ++j) {
        __builtin_memcpy(to + (column + j) * to_stride + row, &v[j], sizeof v[j]);
      }
    }
  }
  for (int64_t column = 0; column < columns; ++column) {
    const int64_t first = column < whole ? whole_rows : 0;
    for (int64_t row = first; row < rows; ++row)
      to[column * to_stride + row] = from.word(row, column);
  }
}

MOESAIC_VECTOR_CLONES void transpose_32(const uint32_t* from, int64_t stride, int64_t rows,
                                        int64_t columns, uint32_t* to, int64_t to_stride) {
  transpose_words(PlainRows<uint32_t>{from, stride}, rows, columns, to, to_stride);
}

MOESAIC_VECTOR_CLONES void transpose_64(const uint64_t* from, int64_t stride, int64_t rows,
                                        int64_t columns, uint64_t* to, int64_t to_stride) {
  transpose_words(PlainRows<uint64_t>{from, stride}, rows, columns, to, to_stride);
}

MOESAIC_VECTOR_CLONES void transpose_16_plain(const uint16_t* from, int64_t stride, int64_t rows,
                                              int64_t columns, uint16_t* to, int64_t to_stride) {
  transpose_words(PlainRows<uint16_t>{from, stride}, rows, columns, to, to_stride);
}

/// Numbers of two bytes: to[c, r] of [columns, 2 * pairs], in pairs.
MOESAIC_VECTOR_CLONES void transpose_pairs(const uint16_t* from, int64_t stride, int64_t rows,
                                           int64_t columns, uint32_t* to, int64_t to_stride) {
  transpose_words(PairedRows{from, stride, rows}, (rows + 1) / 2, columns, to, to_stride);
}

MOESAIC_VECTOR_CLONES void interleave(const uint16_t* from, int64_t stride, int64_t depth,
                                      int64_t columns, uint32_t* to) {
  for (int64_t k = 0; k < depth; k += 2, to += columns) {
    const uint16_t* low = from + k * stride;
    if (k + 1 < depth) {
      const uint16_t* high = low + stride;
      fetch_ahead(low, stride, columns);
      fetch_ahead(high, stride, columns);
      for (int64_t j = 0; j < columns; ++j) to[j] = low[j] | static_cast<uint32_t>(high[j]) << 16;
    } else {
      for (int64_t j = 0; j < columns; ++j) to[j] = low[j];
    }
  }
}

template <class Scalar>
void pack_whole_rows(const Scalar* from, int64_t stride, int64_t depth, int64_t columns,
                     Scalar* to) {
  for (int64_t k = 0; k < depth; ++k) {
    fetch_ahead(from + k * stride, stride, columns);
    std::copy_n(from + k * stride, columns, to + k * columns);
  }
  std::fill(to + depth * columns, to + padded_depth<Scalar>(depth) * columns, Scalar(0));
}

template <class Scalar>
void pack_rows_16(const Scalar* from, int64_t stride, int64_t depth, int64_t columns, Scalar* to) {
  if (product_layout<Scalar>() != ProductLayout::paired) {
    return pack_whole_rows(from, stride, depth, columns, to);
  }
  auto* const words = reinterpret_cast<uint32_t*>(to);
  interleave(reinterpret_cast<const uint16_t*>(from), stride, depth, columns, words);
  const int64_t pairs = (depth + 1) / 2, all = padded_depth<Scalar>(depth) / 2;
  std::fill(words + pairs * columns, words + all * columns, 0);
}

template <class Scalar>
void pack_columns_16(const Scalar* from, int64_t stride, int64_t depth, int64_t columns,
                     Scalar* to) {
  if (product_layout<Scalar>() != ProductLayout::paired) {
    return transpose_16_plain(reinterpret_cast<const uint16_t*>(from), stride, columns, depth,
                              reinterpret_cast<uint16_t*>(to), columns);
  }
  transpose_32(reinterpret_cast<const uint32_t*>(from), stride / 2, columns, depth / 2,
               reinterpret_cast<uint32_t*>(to), columns);
}

void transpose_16(const void* from, int64_t stride, int64_t depth, int64_t rows, void* to) {
  auto* const words = static_cast<uint32_t*>(to);
  const int64_t pairs = (depth + 1) / 2, all = padded_depth<c10::Half>(depth) / 2;
  transpose_pairs(static_cast<const uint16_t*>(from), stride, depth, rows, words, all);
  for (int64_t row = 0; row < rows; ++row) {
    std::fill(words + row * all + pairs, words + (row + 1) * all, 0);
  }
}

void transpose_whole(const float* from, int64_t stride, int64_t rows, int64_t columns, float* to,
                     int64_t to_stride) {
  transpose_32(reinterpret_cast<const uint32_t*>(from), stride, rows, columns,
               reinterpret_cast<uint32_t*>(to), to_stride);
}
void transpose_whole(const double* from, int64_t stride, int64_t rows, int64_t columns, double* to,
                     int64_t to_stride) {
  transpose_64(reinterpret_cast<const uint64_t*>(from), stride, rows, columns,
               reinterpret_cast<uint64_t*>(to), to_stride);
}

template <class Scalar>
void transpose_padded(const Scalar* from, int64_t stride, int64_t depth, int64_t rows, Scalar* to) {
  const int64_t all = padded_depth<Scalar>(depth);
  transpose_whole(from, stride, depth, rows, to, all);
  for (int64_t row = 0; row < rows; ++row) {
    std::fill(to + row * all + depth, to + (row + 1) * all, Scalar(0));
  }
}

}  // namespace

void pack_rows(const float* from, int64_t stride, int64_t depth, int64_t columns, float* to) {
  pack_whole_rows(from, stride, depth, columns, to);
}
void pack_rows(const double* from, int64_t stride, int64_t depth, int64_t columns, double* to) {
  pack_whole_rows(from, stride, depth, columns, to);
}
void pack_rows(const c10::BFloat16* from, int64_t stride, int64_t depth, int64_t columns,
               c10::BFloat16* to) {
  pack_rows_16(from, stride, depth, columns, to);
}
void pack_rows(const c10::Half* from, int64_t stride, int64_t depth, int64_t columns,
               c10::Half* to) {
  pack_rows_16(from, stride, depth, columns, to);
}

void pack_columns(const float* from, int64_t stride, int64_t depth, int64_t columns, float* to) {
  transpose_whole(from, stride, columns, depth, to, columns);
}
void pack_columns(const double* from, int64_t stride, int64_t depth, int64_t columns, double* to) {
  transpose_whole(from, stride, columns, depth, to, columns);
}
void pack_columns(const c10::BFloat16* from, int64_t stride, int64_t depth, int64_t columns,
                  c10::BFloat16* to) {
  pack_columns_16(from, stride, depth, columns, to);
}
void pack_columns(const c10::Half* from, int64_t stride, int64_t depth, int64_t columns,
                  c10::Half* to) {
  pack_columns_16(from, stride, depth, columns, to);
}

void transpose(const float* from, int64_t stride, int64_t depth, int64_t rows, float* to) {
  transpose_padded(from, stride, depth, rows, to);
}
void transpose(const double* from, int64_t stride, int64_t depth, int64_t rows, double* to) {
  transpose_padded(from, stride, depth, rows, to);
}
void transpose(const c10::BFloat16* from, int64_t stride, int64_t depth, int64_t rows,
               c10::BFloat16* to) {
  transpose_16(from, stride, depth, rows, to);
}
void transpose(const c10::Half* from, int64_t stride, int64_t depth, int64_t rows, c10::Half* to) {
  transpose_16(from, stride, depth, rows, to);
}

}  // namespace moesaic::ops
