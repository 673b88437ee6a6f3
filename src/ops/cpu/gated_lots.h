// SPDX-License-Identifier: Apache-2.0
// A batch goes through the losses of gated mixtures in lots of samples whose numbers lie side by
// side, so that loops over the samples of a lot become vectors for any d and k. A lot's missing
// samples have x = 0.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "vector_clones.h"

namespace moesaic::ops {

inline constexpr int kLot = 256;   // Samples of a lot.
inline constexpr int kLanes = 64;  // Sums made side by side: some vectors of any processor.

template <class T>
MOESAIC_IN_CLONE T dot(const T* a, const T* b) {
  T sums[kLanes] = {};
  for (int i = 0; i < kLot; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) sums[l] += a[i + l] * b[i + l];
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
  }
  return sums[0];
}

/// Rows of kLot numbers.
template <class T>
class Rows {
 public:
  explicit Rows(int64_t rows) : numbers_(static_cast<size_t>(rows * kLot)) {}
  MOESAIC_IN_CLONE T* operator[](int64_t row) { return numbers_.data() + row * kLot; }
  MOESAIC_IN_CLONE const T* operator[](int64_t row) const { return numbers_.data() + row * kLot; }

 private:
  std::vector<T> numbers_;
};

/// Inputs and outputs of a batch; inputs may have any strides.
template <class T>
struct Batch {
  const T *x, *y;
  int64_t samples, sample_stride, number_stride;

  Batch(const at::Tensor& x_Bd, const at::Tensor& y_B)
      : x(x_Bd.const_data_ptr<T>()),
        y(y_B.const_data_ptr<T>()),
        samples(x_Bd.size(0)),
        sample_stride(x_Bd.stride(0)),
        number_stride(x_Bd.stride(1)) {}
};

/// Samples [begin, begin + count) of a batch.
template <class T>
struct Lot {
  int64_t d;
  int count = 0;
  Rows<T> x, y;

  explicit Lot(int64_t width) : d(width), x(width), y(1) {}

  MOESAIC_IN_CLONE void load(const Batch<T>& batch, int64_t begin) {
    count = static_cast<int>(std::min<int64_t>(kLot, batch.samples - begin));
    for (int64_t j = 0; j < d; ++j) {
      const T* const from = batch.x + begin * batch.sample_stride + j * batch.number_stride;
      if (batch.sample_stride == 1) {
        std::copy_n(from, count, x[j]);
      } else {
        for (int i = 0; i < count; ++i) x[j][i] = from[i * batch.sample_stride];
      }
      for (int i = count; i < kLot; ++i) x[j][i] = 0;
    }
    for (int i = 0; i < kLot; ++i) y[0][i] = i < count ? batch.y[begin + i] : T(0);
  }
};

/// Computes to[i] = <weights[i], x> for the samples of a lot.
template <class T>
MOESAIC_IN_CLONE void project(const Lot<T>& lot, const T* weights, int64_t rows, Rows<T>& to) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int begin = 0; begin < kLot; begin += kLanes) {
      T sums[kLanes] = {};
      for (int64_t j = 0; j < lot.d; ++j) {
        const T weight = weights[i * lot.d + j];
        const T* const x = lot.x[j] + begin;
        for (int l = 0; l < kLanes; ++l) sums[l] += weight * x[l];
      }
      std::copy_n(sums, kLanes, to[i] + begin);
    }
  }
}

/// Adds to sums[i] the sum over samples of coefficients[i] x.
template <class T>
MOESAIC_IN_CLONE void add_weighted(const Lot<T>& lot, const Rows<T>& coefficients, int64_t rows,
                                   double* sums) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < lot.d; ++j) {
      sums[i * lot.d + j] += static_cast<double>(dot(coefficients[i], lot.x[j]));
    }
  }
}

using Sums = std::vector<double>;
inline Sums zeros(int64_t count) {
  return Sums(static_cast<size_t>(count), 0.0);
}

/// Throw Error unless these are a batch with regressors, and gates for them, on the CPU.
void check_samples(const char* op, const at::Tensor& x, const at::Tensor& y, const at::Tensor& a);
void check_gates(const char* op, const at::Tensor& w, const at::Tensor& a);

}  // namespace moesaic::ops
