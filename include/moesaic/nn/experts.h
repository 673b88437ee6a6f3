// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

#include "moesaic/ops/routing.h"

namespace moesaic::nn {

/// What experts computed for the rows of a routing, [A, ...].
struct ExpertRows {
  at::Tensor outputs;     ///< [A, o]; the gates weigh them
  at::Tensor embeddings;  ///< [A, d'] of experts with a head: its inputs; otherwise undefined
};

/// What experts computed for the tokens of a routing, [T, ...]. A token without an expert gets 0.
struct ExpertsOutput {
  at::Tensor y_To;          ///< [T, o]: the sum over a token's rows of gate times output
  at::Tensor embedding_Td;  ///< [T, d']: the sum of its embeddings, without gates; or undefined
};

/// The networks that a MoE layer sends tokens to, K of them; a variant is a file beside this one.
///
/// The inputs that experts see need not be those that the router saw: `x` holds an input of any
/// shape for each of the T tokens, [T, ...]. A row without an expert (past the last offset) is
/// zero.
class Experts : public torch::nn::Module {
 public:
  /// Dispatch, compute(), combine. What is random in training is drawn from `random`, nothing where
  /// it is undefined.
  virtual ExpertsOutput forward(const at::Tensor& x, const Routing& routing,
                                const at::Generator& random);

  /// The rows alone: row r of expert e is its output for the input of token routing.token[r].
  virtual ExpertRows compute(const at::Tensor& x, const Routing& routing,
                             const at::Generator& random) = 0;

  /// Removes all but these slots (places among the present K experts, ascending) for good: the
  /// parameters shrink.
  virtual void keep(const std::vector<int64_t>& slots) = 0;

  /// K, the experts that are present.
  virtual int64_t count() const = 0;

  /// Multiplications and additions of products that a row costs.
  virtual double flops_per_row() const = 0;

  /// [K] float64: the mean over the neurons of an expert of the Euclidean norm of each neuron's
  /// incoming weights, biases aside (pruning paper, section 5, III).
  virtual at::Tensor neuron_magnitudes() const = 0;
};

/// Cuts stacked parameters [K, ...] down to the rows of these slots, in place; gradients go.
void keep_rows(const std::vector<at::Tensor*>& parameters, const std::vector<int64_t>& slots);

}  // namespace moesaic::nn
