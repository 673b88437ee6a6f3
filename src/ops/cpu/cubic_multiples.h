// SPDX-License-Identifier: Apache-2.0
// Cubic filters on the patches that are multiples of a few directions (ParallelPatches). A filter
// whose product with direction k is m sees s m + b in the multiple s of it; an output, the sum of
// its filters' cubes, is therefore a polynomial of s with four coefficients, and the gradients of m
// and b are sums of grad s^q: no patch costs as many numbers as there are filters.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace moesaic::ops {

/// Rows of experts, as a Routing has them, and how their patches are read, as ParallelPatches.
struct MultiplesRead {
  const at::Tensor &offsets, &token;  ///< [K + 1], [A] int32
  const at::Tensor &which, &scale;    ///< [T, P]
};

/// [A, C]: the sum over the patches that are multiples. `met` [K, D, J] are the directions'
/// products with the filters, b [K, J]. Rows past the last offset are zero.
at::Tensor cubic_multiples(const MultiplesRead& read, const at::Tensor& met, const at::Tensor& b,
                           int64_t outputs);

/// The gradients of `met` and b where that of the sum is grad [A, C]. No bit depends on the number
/// of threads.
std::tuple<at::Tensor, at::Tensor> cubic_multiples_backward(const at::Tensor& grad,
                                                            const MultiplesRead& read,
                                                            const at::Tensor& met,
                                                            const at::Tensor& b);

/// The other patches, each as a row of its own for its row's expert: `offsets` [K + 1] and `token`
/// [A'] (the row of ParallelPatches::rest) as a Routing has them, and whose patch it is, row [A'].
struct RestRows {
  at::Tensor offsets, token, row;
};
RestRows rest_rows(const at::Tensor& offsets, const at::Tensor& token, const at::Tensor& which);

}  // namespace moesaic::ops
