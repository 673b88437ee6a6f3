// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/ops/grouped_mlp.h"
#include "moesaic/ops/routing.h"

namespace moesaic {

/// Computes dispatch, experts and combine of a layer: combine(grouped_mlp(dispatch(x))). With
/// gradients it runs those three operators. Without, it runs one pass that holds at most 14 MB of
/// rows and 1 MB for each thread beside its input and output, for any number of tokens, with the
/// same bits. A processor without products of types of two bytes converts their weights to float32
/// for the call.
///
/// x_Td: [T, d] of the weights' dtype. Returns [T, d]. Throws Error where the two halves of the
/// routing (rows of experts, rows of tokens) differ in the number of rows of a range of tokens.
at::Tensor routed_mlp(const at::Tensor& x_Td, const Routing& routing, const ExpertWeights& weights,
                      Activation activation);

/// Lays out the weights once for many calls of routed_mlp() on the CPU of this process, which
/// otherwise lays them out at each. w1 and w2 keep their shapes; what they hold has no meaning
/// elsewhere: it must not be saved, and no gradient comes back from it. Results are the same bits.
///
/// Returns the weights as they are where that gains nothing: other devices, float64, and dtypes of
/// two bytes that this processor cannot multiply as they are.
ExpertWeights pack_experts(const ExpertWeights& weights);

/// Rounds float32 weights to int8, unpacked: w[k, j] is near s_j q[k, j], where s_j = max_k |w[k,
/// j]| / 127 belongs to an output channel. Without gradients.
ExpertWeights round_experts_to_int8(const ExpertWeights& weights);

/// Hidden units of a block, which has its own scale in int8.
inline constexpr int64_t kInt8BlockSize = 768;

/// Packs round_experts_to_int8() for routed_mlp() of float32 tokens on this CPU. A row x of
/// either layer is rounded to s u with s = max |x| / 127, per block of kInt8BlockSize hidden units
/// in the second layer: a token's result depends on no other. Sums are exact integers; biases,
/// activations and gates are float32. Without gradients.
///
/// Throws Error (usage) where the weights are not float32 on the CPU, where the processor has no
/// such products (has_int8_matmul()), or a width is no multiple of 4 or above 65536.
ExpertWeights quantise_experts(const ExpertWeights& weights);

}  // namespace moesaic
