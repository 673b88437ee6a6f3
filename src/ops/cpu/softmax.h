// SPDX-License-Identifier: Apache-2.0
// Softmax terms over contiguous memory, compiled for every instruction set.
#pragma once

#include <cstdint>

namespace moesaic::ops {

/// Sets values[i] = exp(values[i] - top); top is at least every value.
template <class Scalar>
void softmax_terms(Scalar* values, int64_t count, Scalar top);

template <>
void softmax_terms<float>(float*, int64_t, float);
template <>
void softmax_terms<double>(double*, int64_t, double);

/// Computes the softmax of each row of values [rows, width], in place, summed in the order of
/// columns. Returns the first row that holds a NaN or has no finite largest value, or -1.
template <class Scalar>
int64_t softmax_rows(Scalar* values, int64_t rows, int64_t width);

template <>
int64_t softmax_rows<float>(float*, int64_t, int64_t);
template <>
int64_t softmax_rows<double>(double*, int64_t, int64_t);

}  // namespace moesaic::ops
