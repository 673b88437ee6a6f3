// SPDX-License-Identifier: Apache-2.0
// Every routing as a composite of LibTorch's operators: what the operators compute on a device
// without a kernel of its own for them. The CPU has one for token choice, a GPU for the forward
// passes of token choice of up to eight experts and of expert choice; tests hold them against
// these.
//
// Nothing waits for the host but the CPU's refusal of invalid logits; elsewhere, NaN counts as
// -infinity, and what has no valid logits gets gates of NaN.
#pragma once

#include "route_arguments.h"

namespace moesaic::ops {

ChoiceTensors token_choice(const at::Tensor& logits_TE, const RouteOptions& options);
at::Tensor token_choice_backward(const at::Tensor& grad_gate, const at::Tensor& logits_TE,
                                 const at::Tensor& choice_Tk, const at::Tensor& choice_row_Tk,
                                 const RouteOptions& options);
RowTensors expert_choice(const at::Tensor& logits_TE, const RouteOptions& options);
at::Tensor expert_choice_backward(const at::Tensor& grad_gate, const at::Tensor& logits_TE,
                                  const at::Tensor& token, const at::Tensor& gates,
                                  const RouteOptions& options);
RowTensors adaptive(const at::Tensor& logits_TE, const RouteOptions& options);

/// Second half of token choice: rows of these choices [T, k] among all `experts`, best first, and
/// of their gates. Choices that find their expert full or pruned are dropped.
ChoiceTensors rows_of_choices(const at::Tensor& choice_Tk, const at::Tensor& gate_Tk,
                              int64_t experts, const RouteOptions& options);

// The two steps of a softmax whose order decides its bits. On the CPU they are those of
// softmax_exp.h, with which the kernels of token choice weigh as well; elsewhere they are
// LibTorch's.

/// Returns exp(x) for x <= 0.
at::Tensor softmax_exp(const at::Tensor& x);
/// Returns sums over the last dimension, which keeps size 1; the CPU adds in its order.
at::Tensor sum_in_order(const at::Tensor& x);

}  // namespace moesaic::ops
