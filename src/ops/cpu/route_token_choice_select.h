// SPDX-License-Identifier: Apache-2.0
// Arithmetic of token choice on ranges of tokens: selection, gates, and the gates' gradient.
#pragma once

#include <cstdint>
#include <vector>

#include "moesaic/ops/route.h"

namespace moesaic::ops {

/// Logits of a selection: [T, stride], of which the columns in `columns` take part, ascending.
template <class Scalar>
struct RouterLogits {
  const Scalar* logits;
  int64_t stride;
  const std::vector<int32_t>& columns;
  int64_t k;
  Gate gate;
};

/// Selects for the tokens [begin, end): choice_Tk gets the columns of the k largest logits, best
/// first, ties to the lower one; gate_Tk gets their gates. Returns the first token with invalid
/// logits, or -1; with such a token the arrays are incomplete.
int64_t select_experts(const RouterLogits<float>& router, int64_t begin, int64_t end,
                       int32_t* choice_Tk, float* gate_Tk);
int64_t select_experts(const RouterLogits<double>& router, int64_t begin, int64_t end,
                       int32_t* choice_Tk, double* gate_Tk);

/// Computes d loss / d logits of the tokens [begin, end). row_Tk: the row of each choice in
/// grad_gate, or negative. With g the softmax of the gates and u_e the gradient of expert e's gate
/// (0 for drops): g_e * (u_e - sum_i g_i u_i) over the experts of the softmax; u_e itself for
/// Gate::logit; 0 for Gate::one.
void gate_gradients(const RouterLogits<float>& router, int64_t begin, int64_t end,
                    const int32_t* choice_Tk, const int32_t* row_Tk, const float* grad_gate,
                    float* grad_logits);
void gate_gradients(const RouterLogits<double>& router, int64_t begin, int64_t end,
                    const int32_t* choice_Tk, const int32_t* row_Tk, const double* grad_gate,
                    double* grad_logits);

}  // namespace moesaic::ops
