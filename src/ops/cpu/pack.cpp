// SPDX-License-Identifier: Apache-2.0
// Layouts of operands (product.h). All of them move words of one size: the numbers themselves, or
// pairs of numbers of two bytes.
#include <algorithm>
#include <type_traits>

#include "moesaic/ops/function_attributes.h"
#include "product.h"

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

// The compiler clones no templates.
#define MOESAIC_TRANSPOSE(Word)                                                              \
  MOESAIC_VECTOR_CLONES void transpose_whole(const Word* from, int64_t stride, int64_t rows, \
                                             int64_t columns, Word* to, int64_t to_stride) { \
    transpose_words(PlainRows<Word>{from, stride}, rows, columns, to, to_stride);            \
  }
MOESAIC_TRANSPOSE(uint16_t)
MOESAIC_TRANSPOSE(uint32_t)
MOESAIC_TRANSPOSE(uint64_t)
#undef MOESAIC_TRANSPOSE

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

/// The unsigned integer of as many bytes.
template <class Scalar>
using WordOf = std::conditional_t<sizeof(Scalar) == 8, uint64_t,
                                  std::conditional_t<sizeof(Scalar) == 4, uint32_t, uint16_t>>;

template <class Scalar>
bool is_paired() {
  if constexpr (kIsHalfWide<Scalar>) return product_layout<Scalar>() == ProductLayout::paired;
  return false;
}

}  // namespace

template <class Scalar>
void pack_rows(const Scalar* from, int64_t stride, int64_t depth, int64_t columns, Scalar* to) {
  const int64_t all = padded_depth<Scalar>(depth);
  int64_t filled = depth;
  if (is_paired<Scalar>()) {
    interleave(reinterpret_cast<const uint16_t*>(from), stride, depth, columns,
               reinterpret_cast<uint32_t*>(to));
    filled = (depth + 1) / 2 * 2;
  } else {
    for (int64_t k = 0; k < depth; ++k) {
      fetch_ahead(from + k * stride, stride, columns);
      std::copy_n(from + k * stride, columns, to + k * columns);
    }
  }
  std::fill(to + filled * columns, to + all * columns, Scalar(0));
}

void pack_rows(const int8_t* from, int64_t stride, int64_t depth, int64_t columns, int8_t* to) {
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t j = 0; j < columns; ++j) {
      to[(k / 4 * columns + j) * 4 + k % 4] = from[k * stride + j];
    }
  }
}

template <class Scalar>
void pack_columns(const Scalar* from, int64_t stride, int64_t depth, int64_t columns, Scalar* to) {
  if (is_paired<Scalar>()) {
    transpose_whole(reinterpret_cast<const uint32_t*>(from), stride / 2, columns, depth / 2,
                    reinterpret_cast<uint32_t*>(to), columns);
  } else {
    using Word = WordOf<Scalar>;
    transpose_whole(reinterpret_cast<const Word*>(from), stride, columns, depth,
                    reinterpret_cast<Word*>(to), columns);
  }
}

template <class Scalar>
void transpose(const Scalar* from, int64_t stride, int64_t depth, int64_t rows, Scalar* to) {
  const int64_t all = padded_depth<Scalar>(depth);
  int64_t filled = depth;
  if constexpr (kIsHalfWide<Scalar>) {
    transpose_pairs(reinterpret_cast<const uint16_t*>(from), stride, depth, rows,
                    reinterpret_cast<uint32_t*>(to), all / 2);
    filled = (depth + 1) / 2 * 2;
  } else {
    using Word = WordOf<Scalar>;
    transpose_whole(reinterpret_cast<const Word*>(from), stride, depth, rows,
                    reinterpret_cast<Word*>(to), all);
  }
  for (int64_t row = 0; row < rows; ++row) {
    std::fill(to + row * all + filled, to + (row + 1) * all, Scalar(0));
  }
}

#define MOESAIC_LAYOUTS(Scalar)                                                  \
  template void pack_rows(const Scalar*, int64_t, int64_t, int64_t, Scalar*);    \
  template void pack_columns(const Scalar*, int64_t, int64_t, int64_t, Scalar*); \
  template void transpose(const Scalar*, int64_t, int64_t, int64_t, Scalar*);
MOESAIC_LAYOUTS(float)
MOESAIC_LAYOUTS(double)
MOESAIC_LAYOUTS(c10::BFloat16)
MOESAIC_LAYOUTS(c10::Half)
#undef MOESAIC_LAYOUTS

}  // namespace moesaic::ops
