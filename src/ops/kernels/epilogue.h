// SPDX-License-Identifier: Apache-2.0
// Epilogues, applied to the sums of a product before they are stored: `apply<Count>(expert, row,
// column, sums)` takes `Count` neighbouring columns of a row. The same structs serve the kernel of
// a product and separate passes.
#pragma once

#include <cstdint>

#include "activation.h"
#include "number.h"

namespace moesaic::ops::kernels {

template <class T, int Count>
MOESAIC_INLINE void store(T* to, const Sum<T> (&sums)[Count]) {
  Piece<T, Count> piece;
  MOESAIC_UNROLL
  for (int c = 0; c < Count; ++c) piece.at[c] = Number<T>::narrow(sums[c]);
  write<T, Count>(to, piece);
}

/// Stores out = sums.
template <class T>
struct Plain {
  T* out;
  int64_t columns;

  template <int Count>
  MOESAIC_INLINE void apply(int32_t, int64_t row, int64_t column, Sum<T> (&sums)[Count]) const {
    store<T, Count>(out + row * columns + column, sums);
  }
};

/// Stores out = sums + bias.
template <class T>
struct AddBias {
  T* out;
  const T* bias;  // [experts, columns]
  int64_t columns;

  template <int Count>
  MOESAIC_INLINE void apply(int32_t expert, int64_t row, int64_t column,
                            Sum<T> (&sums)[Count]) const {
    const Piece<T, Count> add = read<T, Count>(bias + expert * columns + column);
    MOESAIC_UNROLL
    for (int c = 0; c < Count; ++c) sums[c] += widen(add.at[c]);
    store<T, Count>(out + row * columns + column, sums);
  }
};

/// Stores hidden = sums + bias (unless null) and active = act(hidden).
template <class T>
struct AddBiasActivate {
  T *hidden, *active;  // `hidden` may be null.
  const T* bias;       // [experts, columns]
  int64_t columns;
  Act kind;

  template <int Count>
  MOESAIC_INLINE void apply(int32_t expert, int64_t row, int64_t column,
                            Sum<T> (&sums)[Count]) const {
    const int64_t place = row * columns + column;
    const Piece<T, Count> add = read<T, Count>(bias + expert * columns + column);
    MOESAIC_UNROLL
    for (int c = 0; c < Count; ++c) sums[c] += widen(add.at[c]);
    if (hidden != nullptr) store<T, Count>(hidden + place, sums);
    with_activation(kind, [&](auto constant) {
      MOESAIC_UNROLL
      for (int c = 0; c < Count; ++c) {
        sums[c] = activated<decltype(constant)::value>(sums[c]).value;
      }
    });
    store<T, Count>(active + place, sums);
  }
};

/// Stores grad_hidden = sums * act'(hidden), sums being d loss / d act(hidden), and act(hidden).
template <class T>
struct ActivationGradient {
  const T* hidden;
  T *grad_hidden, *active;
  int64_t columns;
  Act kind;

  template <int Count>
  MOESAIC_INLINE void apply(int32_t, int64_t row, int64_t column, Sum<T> (&sums)[Count]) const {
    const int64_t place = row * columns + column;
    const Piece<T, Count> seen = read<T, Count>(hidden + place);
    Sum<T> values[Count] = {};
    with_activation(kind, [&](auto constant) {
      MOESAIC_UNROLL
      for (int c = 0; c < Count; ++c) {
        const auto point = activated<decltype(constant)::value>(widen(seen.at[c]));
        values[c] = point.value;
        sums[c] *= point.slope;
      }
    });
    store<T, Count>(grad_hidden + place, sums);
    store<T, Count>(active + place, values);
  }
};

}  // namespace moesaic::ops::kernels
