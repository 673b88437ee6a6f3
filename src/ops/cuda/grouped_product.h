// SPDX-License-Identifier: Apache-2.0
// Starts the products of kernels/grouped_product.h and the passes of kernels/expert_rows.h; T is
// float, double or BFloat16. Pointers are on the device; rows past offsets[experts] stay unwritten.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../kernels/activation.h"
#include "../kernels/number.h"

namespace moesaic::ops::kernels {

struct ExpertRows {
  const int32_t* offsets;  // [experts + 1]
  int32_t experts;
  int64_t rows;  // Upper bound of the number of rows.
};

/// Computes hidden = a w + bias (stored unless null) and active = act(hidden). a: [rows, depth], w:
/// [experts, depth, columns].
template <class T>
void product_bias_activate(const ExpertRows& at, const T* a, const T* w, const T* bias,
                           int64_t depth, int64_t columns, Act kind, T* hidden, T* active,
                           cudaStream_t stream);

/// Computes y = a w + bias.
template <class T>
void product_bias(const ExpertRows& at, const T* a, const T* w, const T* bias, int64_t depth,
                  int64_t columns, T* y, cudaStream_t stream);

/// Computes grad_hidden = (grad w^T) act'(hidden) and active = act(hidden). w: as for out = a w^T.
template <class T>
void product_activation_gradient(const ExpertRows& at, const T* grad, const T* w, const T* hidden,
                                 int64_t depth, int64_t columns, Act kind, T* grad_hidden,
                                 T* active, cudaStream_t stream);

/// Computes out = a w^T. w: [experts, columns, depth].
template <class T>
void product_transposed(const ExpertRows& at, const T* a, const T* w, int64_t depth,
                        int64_t columns, T* out, cudaStream_t stream);

/// Computes out_e = left_e^T right_e over the rows of e; out: [experts, p, q].
template <class T>
void product_of_rows(const ExpertRows& at, const T* left, const T* right, int64_t p, int64_t q,
                     T* out, cudaStream_t stream);

/// Apply the epilogues of the products above as separate passes over a finished product.
template <class T>
void pass_bias_activate(const ExpertRows& at, const T* product, const T* bias, int64_t columns,
                        Act kind, T* hidden, T* active, cudaStream_t stream);
template <class T>
void pass_bias(const ExpertRows& at, const T* product, const T* bias, int64_t columns, T* y,
               cudaStream_t stream);
template <class T>
void pass_activation_gradient(const ExpertRows& at, const T* product, const T* hidden,
                              int64_t columns, Act kind, T* grad_hidden, T* active,
                              cudaStream_t stream);

/// Returns the number of elements of workspace that sum_expert_rows() needs.
int64_t partial_sums(const ExpertRows& at, int64_t columns);
/// Computes out[e, j] = sum of from[r, j] over the rows of e, in a fixed order.
template <class T>
void sum_expert_rows(const ExpertRows& at, const T* from, int64_t columns, Sum<T>* partial, T* out,
                     cudaStream_t stream);

/// Zeros the elements of experts without rows. to: [experts, size].
template <class T>
void clear_idle_experts(const ExpertRows& at, T* to, int64_t size, cudaStream_t stream);

}  // namespace moesaic::ops::kernels
