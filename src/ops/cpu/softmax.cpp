// SPDX-License-Identifier: Apache-2.0
#include "softmax.h"

#include <cmath>
#include <limits>

#include "../route_math.h"
#include "vector_clones.h"

namespace moesaic::ops {
namespace {

template <class Scalar>
MOESAIC_IN_CLONE void terms_of(Scalar* __restrict values, int64_t count, Scalar top) {
  for (int64_t i = 0; i < count; ++i) values[i] = softmax_exp(values[i] - top);
}

template <class Scalar>
MOESAIC_IN_CLONE int64_t rows_of_softmax(Scalar* values, int64_t rows, int64_t width) {
  int64_t bad = -1;
  for (int64_t row = 0; row < rows; ++row) {
    Scalar* __restrict value = values + row * width;
    Scalar top = -std::numeric_limits<Scalar>::infinity();
    bool nan = false;
    for (int64_t i = 0; i < width; ++i) {
      nan |= value[i] != value[i];
      top = value[i] > top ? value[i] : top;
    }
    if (bad < 0 && (nan || !std::isfinite(top))) bad = row;
    terms_of(value, width, top);
    Scalar sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += value[i];
    for (int64_t i = 0; i < width; ++i) value[i] /= sum;
  }
  return bad;
}

MOESAIC_VECTOR_CLONES void float_terms(float* values, int64_t count, float top) {
  terms_of(values, count, top);
}
MOESAIC_VECTOR_CLONES int64_t float_rows(float* values, int64_t rows, int64_t width) {
  return rows_of_softmax(values, rows, width);
}

}  // namespace

template <>
void softmax_terms<float>(float* values, int64_t count, float top) {
  float_terms(values, count, top);
}
template <>
void softmax_terms<double>(double* values, int64_t count, double top) {
  terms_of(values, count, top);
}

template <>
int64_t softmax_rows<float>(float* values, int64_t rows, int64_t width) {
  return float_rows(values, rows, width);
}
template <>
int64_t softmax_rows<double>(double* values, int64_t rows, int64_t width) {
  return rows_of_softmax(values, rows, width);
}

}  // namespace moesaic::ops
