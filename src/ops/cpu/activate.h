// SPDX-License-Identifier: Apache-2.0
// What happens to a product's sums before they leave the cache (the epilogues of product.h):
// biases, activations and their gradients, rounding.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "moesaic/ops/activation.h"
#include "rows.h"

namespace moesaic::ops {

/// out = act(sums + bias) and, unless it is null, before = sums + bias, both rounded. Activations
/// are of the rounded number, so that the backward pass sees what the forward pass saw.
template <class Scalar>
struct Epilogue {
  int64_t rows, columns;
  const SumOf<Scalar>* sums;
  int64_t sums_stride;
  const Scalar* bias;  ///< [columns]
  Activation activation;
  Scalar* out;
  int64_t out_stride;
  Scalar* before = nullptr;
  int64_t before_stride = 0;
};

void finish(const Epilogue<float>& epilogue);
void finish(const Epilogue<double>& epilogue);
void finish(const Epilogue<c10::BFloat16>& epilogue);
void finish(const Epilogue<c10::Half>& epilogue);

/// grad = sums * act'(before) and, unless it is null, active = act(before), both rounded;
/// bias_grad[j] += the sum of column j of grad.
template <class Scalar>
struct BackwardEpilogue {
  int64_t rows, columns;
  const SumOf<Scalar>* sums;
  int64_t sums_stride;
  Activation activation;
  const Scalar* before;
  int64_t before_stride;
  Scalar* grad;
  int64_t grad_stride;
  Scalar* active;
  int64_t active_stride;
  SumOf<Scalar>* bias_grad;
};

void finish_backward(const BackwardEpilogue<float>& epilogue);
void finish_backward(const BackwardEpilogue<double>& epilogue);
void finish_backward(const BackwardEpilogue<c10::BFloat16>& epilogue);
void finish_backward(const BackwardEpilogue<c10::Half>& epilogue);

void round_rows(const float* sums, int64_t rows, int64_t columns, int64_t sums_stride,
                c10::BFloat16* to, int64_t to_stride);
void round_rows(const float* sums, int64_t rows, int64_t columns, int64_t sums_stride,
                c10::Half* to, int64_t to_stride);

/// to[j] += the sum of column j of `count` rows.
template <class Scalar>
void add_columns(const Scalar* rows, int64_t count, int64_t columns, int64_t stride,
                 SumOf<Scalar>* to) {
  for (int64_t i = 0; i < count; ++i) {
    const Scalar* row = rows + i * stride;
    for (int64_t j = 0; j < columns; ++j) to[j] += static_cast<SumOf<Scalar>>(row[j]);
  }
}

}  // namespace moesaic::ops
