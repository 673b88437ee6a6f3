// SPDX-License-Identifier: Apache-2.0
// The products of grouped_product.h for bfloat16 on the tensor cores of a Hopper GPU (compute
// capability 9.0), with the same arguments. They return whether they could be started: not where
// the driver refuses a description of the matrices.
#pragma once

#include "grouped_product.h"

namespace moesaic::ops::kernels::hopper {

/// Whether the current device and its driver have what these products need.
bool available();

/// Whether rows of so many numbers may be an operand. Addresses have to be multiples of 16.
constexpr bool accepts(int64_t width) {
  return width > 0 && width % 8 == 0;
}

bool product_bias_activate(const ExpertRows& at, const BFloat16* a, const BFloat16* w,
                           const BFloat16* bias, int64_t depth, int64_t columns, Act kind,
                           BFloat16* hidden, BFloat16* active, cudaStream_t stream);

bool product_bias(const ExpertRows& at, const BFloat16* a, const BFloat16* w, const BFloat16* bias,
                  int64_t depth, int64_t columns, BFloat16* y, cudaStream_t stream);

bool product_activation_gradient(const ExpertRows& at, const BFloat16* grad, const BFloat16* w,
                                 const BFloat16* hidden, int64_t depth, int64_t columns, Act kind,
                                 BFloat16* grad_hidden, BFloat16* active, cudaStream_t stream);

bool product_transposed(const ExpertRows& at, const BFloat16* a, const BFloat16* w, int64_t depth,
                        int64_t columns, BFloat16* out, cudaStream_t stream);

bool product_of_rows(const ExpertRows& at, const BFloat16* left, const BFloat16* right, int64_t p,
                     int64_t q, BFloat16* out, cudaStream_t stream);

}  // namespace moesaic::ops::kernels::hopper
