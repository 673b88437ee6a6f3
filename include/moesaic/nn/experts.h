// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "moesaic/ops/routing.h"

namespace moesaic {
class Group;  // parallel/group.h
}

namespace moesaic::nn {

/// Outputs of the experts for the A rows of a routing, [A, ...].
struct ExpertRows {
  at::Tensor outputs;     ///< Outputs [A, o], which the gates weigh.
  at::Tensor embeddings;  ///< Inputs [A, d'] of the experts' heads; undefined without heads.
  bool gated = false;     ///< Whether the gates are within the outputs already.
};

/// Combined outputs of the experts for T tokens, [T, ...]. A token without an expert gets 0.
struct ExpertsOutput {
  at::Tensor y_To;          ///< Outputs [T, o]: the sum over a token's rows of gate times output.
  at::Tensor embedding_Td;  ///< Sum [T, d'] of a token's embeddings, without gates; or undefined.
};

/// Returns the values of a parameter: its own, or those that a file holds for a network on the meta
/// device.
using ParameterValues = std::function<at::Tensor(const at::Tensor& parameter)>;

/// Returns the parameter itself.
at::Tensor own_values(const at::Tensor& parameter);

/// Weights of one expert without biases: views [neurons, inputs], a row for each neuron.
struct ExpertMatrices {
  std::vector<at::Tensor> hidden;  ///< Of the neurons whose magnitude counts (pruning paper,
                                   ///< section 5, III).
  std::vector<at::Tensor> others;
};

/// How the processes of a group share experts out, see shared_experts.h.
enum class Sharing {
  none,         ///< Not at all.
  rows,         ///< compute() of an expert depends on its rows alone.
  side_by_side  ///< forward() has the outputs of the experts beside each other, in their order.
};

/// The K expert networks of a MoE layer. Each kind of experts has a header beside this one.
///
/// The experts' inputs may differ from the router's: `x` holds an input of any shape for each of
/// the T tokens, [T, ...]. A row without an expert (past the last offset) is zero.
class Experts : public torch::nn::Module {
 public:
  /// Runs dispatch, compute() and combine. Random numbers of training are drawn from `random`;
  /// nothing is drawn where it is undefined.
  virtual ExpertsOutput forward(const at::Tensor& x, const Routing& routing,
                                const at::Generator& random);

  /// Computes the rows: row r of expert e is its output for the input of token routing.token[r].
  virtual ExpertRows compute(const at::Tensor& x, const Routing& routing,
                             const at::Generator& random) = 0;

  /// Returns how processes can share the experts out.
  virtual Sharing sharing() const { return Sharing::none; }
  /// Leaves these slots to this process until gather(). Parameters stacked [K, ...] shrink.
  virtual void share_out(const std::vector<int64_t>& slots) { keep(slots); }
  /// Gives this process the experts of the others of the group again, which have as many.
  virtual void gather(const Group& group);
  /// Returns whether a name below this module is of one expert alone, such as "3.conv.weight".
  virtual bool names_experts() const { return false; }

  /// Removes all experts except these slots (indices among the present K experts, ascending); the
  /// parameters shrink.
  virtual void keep(const std::vector<int64_t>& slots) = 0;

  /// Number K of experts that are present.
  virtual int64_t count() const = 0;

  /// Numbers o of one output.
  virtual int64_t outputs() const = 0;
  /// Numbers of what forward() returns for a token.
  virtual int64_t token_outputs() const { return outputs(); }

  /// FLOPs of one row: multiplications and additions of its matrix products.
  virtual double flops_per_row() const = 0;

  /// Returns the weights of the expert in this slot.
  virtual ExpertMatrices matrices(int64_t slot, const ParameterValues& values) const = 0;
};

/// Returns the mean over an expert's hidden neurons of the Euclidean norm of the neuron's incoming
/// weights, accumulated in float64 (pruning paper, section 5, III).
double neuron_magnitude(const ExpertMatrices& expert);

/// Reduces stacked parameters [K, ...] to the rows of these slots in place and drops gradients.
void keep_rows(const std::vector<at::Tensor*>& parameters, const std::vector<int64_t>& slots);

}  // namespace moesaic::nn
