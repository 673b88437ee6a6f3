// SPDX-License-Identifier: Apache-2.0
// Starts the kernels of kernels/move_rows.h; T is float, double, BFloat16 or Half.
// Pointers are on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../kernels/move_rows.h"

namespace moesaic::ops::kernels {

template <class T>
struct RowCopies {
  const T* from;
  const int32_t *token_offsets, *token_row;
  T* to;
  int64_t tokens, row_bound, width;
};
template <class T>
void dispatch_rows(const RowCopies<T>& arguments, cudaStream_t stream);

template <class T>
struct RowSums {
  const T* from;
  const Sum<T>* gate;  // `gate` may be null: every row counts once.
  const int32_t *token_offsets, *token_row;
  T* to;
  int64_t tokens, width;
  RowBias<T> bias = {};
};
template <class T>
void sum_rows(const RowSums<T>& arguments, cudaStream_t stream);

template <class T>
struct CombineGradients {
  const T *grad, *rows;
  const Sum<T>* gate;
  const int32_t *token_offsets, *token_row;
  T* grad_rows;
  Sum<T>* grad_gate;
  int64_t tokens, row_bound, width;
  RowBias<T> bias = {};
};
template <class T>
void combine_backward(const CombineGradients<T>& arguments, cudaStream_t stream);

}  // namespace moesaic::ops::kernels
