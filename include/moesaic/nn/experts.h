// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "moesaic/nn/batch_shard.h"
#include "moesaic/ops/activation.h"
#include "moesaic/ops/routing.h"

namespace moesaic::nn {

/// Outputs of the experts for the A rows of a routing, [A, ...].
struct ExpertRows {
  at::Tensor outputs;     ///< Outputs [A, o], which the gates weigh.
  at::Tensor embeddings;  ///< Inputs [A, d'] of the experts' heads; undefined without heads.
  bool is_gated = false;  ///< Whether the gates are within the outputs already.
};

/// Combined outputs of the experts for T tokens, [T, ...]. A token without an expert gets 0.
struct ExpertsOutput {
  at::Tensor y_To;          ///< Outputs [T, o]: the sum over a token's rows of gate times output.
  at::Tensor embedding_Td;  ///< Sum [T, d'] of a token's embeddings, without gates; or undefined.
};

/// Returns the values of a parameter: its own, or those that a file holds for a network on the meta
/// device.
using ParameterReader = std::function<at::Tensor(const at::Tensor& parameter)>;

/// Returns the parameter itself.
at::Tensor read_parameter(const at::Tensor& parameter);

/// Weights of one expert without biases: views [neurons, inputs], a row for each neuron.
struct ExpertMatrices {
  std::vector<at::Tensor> hidden;  ///< Incoming weights of hidden neurons, by which experts
                                   ///< are ranked (pruning paper, section 5, III).
  std::vector<at::Tensor> others;  ///< All other weights.
};

/// How experts can be sharded among the processes of a group, see Experts::shard().
enum class ExpertParallel {
  none,        ///< Not at all.
  all_to_all,  ///< compute() depends on rows and offsets alone, expert by expert.
  all_gather   ///< mixture() has the outputs of the experts beside each other, in their order.
};

/// TorchScript form of experts.
struct ExpertsScript {
  std::string source;                  ///< Methods, see script::make_experts().
  bool has_mix = false;                ///< Whether it has mix() in place of one_by_one().
  std::optional<Activation> mlp = {};  ///< Activation of float MLPs, which have all_at_once().
  /// Buffers in place of the experts' parameters and buffers; empty: those.
  std::vector<std::pair<std::string, at::Tensor>> tensors = {};
};

/// The K expert networks of an MoE layer. Each kind of experts has a header beside this one.
///
/// The experts' inputs may differ from the router's: the layer gets an input of any shape for each
/// of the T tokens, [T, ...]. A row without an expert (past the last offset) is zero.
class Experts : public torch::nn::Module {
 public:
  /// Computes dispatched rows [A, ...] -> [A, o]: those from routing.offsets[e] to
  /// routing.offsets[e + 1] are of expert e. Random numbers of training are drawn from `random`;
  /// nothing is drawn where it is undefined.
  virtual ExpertRows compute(const at::Tensor& rows, const Routing& routing,
                             const at::Generator& random) = 0;

  /// Computes at once what dispatch, compute() and combine make of the inputs x [T, ...], for kinds
  /// that have a faster way. Returns nothing where the layer is to run those three. Experts that
  /// processes share by all_to_all are never asked.
  virtual std::optional<ExpertsOutput> fused(const at::Tensor& /*x*/, const Routing& /*routing*/,
                                             const at::Generator& /*random*/) {
    return std::nullopt;
  }

  /// Returns whether inputs are rounded to bfloat16 before dispatch and outputs before combine; in
  /// backward, so are the gradients of the outputs, of an expert's inputs and of a token's sum of
  /// these. All arithmetic keeps its own type.
  virtual bool rounds_to_bfloat16() const { return false; }

  /// Returns how the experts can be sharded among processes.
  virtual ExpertParallel expert_parallel() const { return ExpertParallel::none; }
  /// Throws Error (usage) where so many processes cannot share the experts, or not in equal
  /// numbers.
  void check_shards(int64_t processes) const;
  /// Keeps only this process' shard of the experts: processes that share a replica have equal
  /// ranges of slots, by rank; the parameters shrink. Throws as check_shards() does.
  void shard(const std::shared_ptr<const ProcessMesh>& processes);
  /// Ends the sharding: every process has all experts again.
  void unshard();
  /// Returns the processes that share the experts, null: none.
  const std::shared_ptr<const ProcessMesh>& mesh() const { return mesh_; }
  /// Returns whether shared experts need records of whole batches.
  bool needs_whole_batch() const {
    return mesh_ && expert_parallel() == ExpertParallel::all_gather;
  }
  /// Returns whether each expert has parameters of its own, such as "3.conv.weight", instead of a
  /// slice of stacked ones.
  virtual bool has_expert_names() const { return false; }

  /// Removes all experts except these slots (indices among the present K experts, ascending); the
  /// parameters shrink. Parameters and buffers are stacked [K, ...] unless a kind overrides this.
  virtual void keep(const std::vector<int64_t>& slots);

  /// Gives each of the K experts an average of all, see average_experts(). Parameters and buffers
  /// must be stacked [K, ...].
  void average(const at::Tensor& weights_KK);

  /// Returns the number of experts that are present, K.
  virtual int64_t num_experts() const = 0;

  /// Returns the number of elements of an expert's output for a row, o.
  virtual int64_t num_outputs() const = 0;
  /// Returns the number of elements of the mixture for a token.
  virtual int64_t num_token_outputs() const { return num_outputs(); }

  /// Returns the FLOPs of one row: multiplications and additions of its matrix products.
  virtual double flops_per_row() const = 0;

  /// Returns the weights of the expert in this slot.
  virtual ExpertMatrices matrices(int64_t slot, const ParameterReader& values) const = 0;

  /// Rounds the weights to int8 for all later calls, which are without gradients and on one
  /// process, see quantise_experts(). Throws Error (usage) where a kind, processor or device
  /// cannot.
  virtual void use_int8();

  /// Returns the experts in TorchScript. Throws Error where a kind has no such form.
  virtual ExpertsScript script_source() const;

 private:
  /// Keeps only these slots, this process' shard. Parameters stacked [K, ...] shrink.
  virtual void keep_local(const std::vector<int64_t>& slots) { keep(slots); }
  /// Restores all experts from the equal shards of the group's processes.
  virtual void gather(const ProcessGroup& group);

  std::shared_ptr<const ProcessMesh> mesh_;
};

/// Runs `compute` on the rows of each expert apart, of rows [A, ...] in the routing's order, and
/// concatenates the results, with zeros for rows without an expert. A field of ExpertRows that
/// `compute` leaves undefined stays undefined. Waits for the offsets on the host; on the meta
/// device the experts have as many rows.
ExpertRows for_each_expert(
    const at::Tensor& rows, const Routing& routing,
    const std::function<ExpertRows(int64_t slot, const at::Tensor& own)>& compute);

/// Returns the mean over an expert's hidden neurons of the Euclidean norm of the neuron's incoming
/// weights, accumulated in float64 (pruning paper, section 5, III).
double neuron_magnitude(const ExpertMatrices& expert);

/// Returns the parameters and buffers of a module.
std::vector<at::Tensor> tensors_of(const torch::nn::Module& module);

/// Returns the averages of stacked parameters [K, ...] of experts: of expert i the sum over experts
/// j of weights_KK[i, j] times the parameter of j, in float64 and rounded to its type.
at::Tensor average_experts(const at::Tensor& stacked, const at::Tensor& weights_KK);

/// Gives a parameter or buffer another value, of any shape, and drops its gradient.
void replace_value(at::Tensor tensor, const at::Tensor& value);

}  // namespace moesaic::nn
