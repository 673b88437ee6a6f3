// SPDX-License-Identifier: Apache-2.0
// Training with many processes on paper: memory, bytes and time of a step. docs/scaling.md derives
// the formulas.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/models/model.h"
#include "moesaic/train/gpu.h"
#include "moesaic/train/run_plan.h"

namespace moesaic {

/// How W processes share a network: W = replicas x experts, neighbours in rank share the experts.
struct ProcessMesh {
  int64_t processes = 1;         ///< W; each takes 1 / W of a batch.
  int64_t experts = 1;           ///< K processes hold E / K experts each of one replica.
  bool shard_optimizer = false;  ///< Each holds 1 / W of the dense parameters' optimizer state.

  int64_t replicas() const { return processes / experts; }
};

enum class CollectiveKind { all_reduce, all_gather, all_to_all };

/// All collectives of one purpose in a step, as one process takes part in them.
struct Collective {
  std::string name;
  CollectiveKind kind = CollectiveKind::all_reduce;
  int64_t group = 1;     ///< Processes that take part.
  int64_t stride = 1;    ///< Distance of their ranks.
  double calls = 0.0;    ///< Calls in a step.
  double bytes = 0.0;    ///< Bytes that a process sends in a step.
  double seconds = 0.0;  ///< Time of all calls, see plan_scaling().
};

/// Returns the collectives of a step (of one update, however many parts its batch has) with their
/// bytes and without their time: `gradients`, `expert_gradients`, `logits`, `logits_gradient`,
/// `rows`, `row_counts`, `batch_norm`, `expert_batch_norm`, `metrics`, `parameters`; those that
/// send nothing are left out. `model` is on the meta device (build_model_shape()). Throws Error
/// (usage) as check_mesh() does.
std::vector<Collective> step_collectives(Model& model, const PhasePlan& phase,
                                         const ProcessMesh& mesh);

/// Throws Error (usage), with the nearest valid choice, unless K divides W and the experts of every
/// MoE layer, and W the images of a part of the phase's batch.
void check_mesh(const Model& model, const PhasePlan& phase, const ProcessMesh& mesh);

/// All that the time of a step depends on beside the network: the GPU, and what is assumed.
struct ClusterModel {
  Gpu gpu = gpus().at("h100");
  bool tf32 = false;              ///< Products of float32 round their inputs.
  int64_t node = 8;               ///< GPUs of a node.
  double tensor_fraction = 0.45;  ///< Of the peak in bfloat16 and TF32, over a whole step.
  double float32_fraction = 0.7;  ///< Of the peak in float32.
  double memory_fraction = 0.8;   ///< Of the memory's rate.
  double link_fraction = 0.8;     ///< Of the links' rates.
  double call_latency = 10e-6;    ///< Seconds until a collective begins.
  double node_latency = 1e-6;     ///< Seconds of a hop within a node.
  double network_latency = 5e-6;  ///< Seconds of a hop between nodes.
  double routing_forward = 16.0;  ///< Times that routing reads or writes its logits [T, E].
  double routing_backward = 8.0;  ///< The same in its backward pass.
};

/// Memory of a process in bytes, without the program, its data, the allocator's gaps and the
/// communication library's own.
struct ProcessMemory {
  double parameters = 0.0, gradients = 0.0, optimizer = 0.0;
  /// What else a step holds at once at most, in float32 and with all experts' rows; unset means
  /// unknown.
  std::optional<double> activations = 0.0;
  double buffers = 0.0;  ///< Routing of other processes' tokens, rows under way.

  /// Returns the sum of what is known.
  double sum() const {
    return parameters + gradients + optimizer + activations.value_or(0.0) + buffers;
  }
};

/// A step of a phase as one of the processes sees it.
struct ScalingPlan {
  int64_t images = 0;  ///< Images of a process in a step.
  ProcessMemory memory;
  std::vector<Collective> collectives;
  double products = 0.0;  ///< Seconds of forward and backward passes.
  double routing = 0.0;   ///< Seconds of routing, of all processes' tokens or its own.
  double update = 0.0;    ///< Seconds of the optimizer.
  double waiting = 0.0;   ///< Seconds of communication that nothing overlaps.
  /// Time of the same step without communication and without the tokens of others, over step().
  double efficiency = 1.0;
  double images_per_second = 0.0;  ///< Of all processes.
  double peak_fraction = 0.0;      ///< FLOP/s of 3 forward passes over the GPU's peak.

  double step() const { return products + routing + update + waiting; }
  double bytes_sent() const;
};

/// Plans a phase of kind "gradient" that has steps. `model` is the phase's network, or one of
/// nearly the same shape, on the meta device. Throws Error (usage) as check_mesh() does.
ScalingPlan plan_scaling(Model& model, const PhasePlan& phase, const ProcessMesh& mesh,
                         const ClusterModel& cluster = {});

/// What `train --dry-run` is asked about many processes.
struct ScalingOptions {
  std::string gpu = "h100";              ///< Name in gpus().
  std::vector<int64_t> processes = {1};  ///< Several are compared with each other.
  int64_t expert_parallel = 1;
  bool shard_optimizer = false;
};

/// Returns the plan of each phase as text: all of it for one number of processes, a table for
/// several. Throws Error (usage) for an unknown GPU and as check_mesh() does.
std::string describe_scaling(Model& model, const RunConfig& config,
                             const std::vector<PhasePlan>& phases, const ScalingOptions& options);

}  // namespace moesaic
