// SPDX-License-Identifier: Apache-2.0
// Training with many processes on paper: memory, bytes and time of a step. docs/scaling.md derives
// the formulas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/base/registry.h"
#include "moesaic/models/model.h"
#include "moesaic/parallel/group.h"
#include "moesaic/train/run_plan.h"

namespace moesaic {

/// A GPU and its links in the node that it is usually sold in: the vendor's figures, without
/// sparsity. docs/scaling.md names the sources.
struct Gpu {
  double float32 = 0.0, tf32 = 0.0, bfloat16 = 0.0;  ///< Peak FLOP/s of matrix products.
  double memory = 0.0, memory_rate = 0.0;            ///< Bytes, and bytes/s read or written.
  double node_rate = 0.0, network_rate = 0.0;  ///< Bytes/s sent within its node and to others.
};

/// Returns the registry of GPUs that `train --dry-run --gpu` knows; a program may add its own.
Registry<Gpu>& gpus();

/// How W processes share a network: W = replicas x experts, neighbours in rank share the experts.
struct ProcessMesh {
  int64_t processes = 1;         ///< W; each takes 1 / W of a batch.
  int64_t experts = 1;           ///< K processes hold E / K experts each of one replica.
  bool shard_optimizer = false;  ///< Each holds 1 / W of the dense parameters' optimizer state.
};

/// All collectives of one purpose in a step, as one process takes part in them.
struct Collective {
  std::string name;
  Traffic traffic = Traffic::other;  ///< Of parameters, each process sends one broadcast.
  int64_t group = 1, stride = 1;    ///< Processes that take part, and the distance of their ranks.
  double calls = 0.0, bytes = 0.0;  ///< Of a step; bytes are those that a process sends.
  double seconds = 0.0;             ///< Time of all calls, see plan_scaling().
};

/// Throws Error (usage), with the nearest valid choice, unless K divides W and the experts of every
/// MoE layer, and W the images of a part of the phase's batch.
void check_mesh(const Model& model, const PhasePlan& phase, const ProcessMesh& mesh);

/// All that the time of a step depends on beside the network: the GPU, and what is assumed.
struct ClusterModel {
  Gpu gpu = gpus().at("h100");
  bool tf32 = false;  ///< Products of float32 round their inputs.
  int64_t node = 8;   ///< GPUs of a node.
  /// Fractions that a whole step reaches of the peaks in bfloat16 and TF32, and in float32.
  double tensor_fraction = 0.45, float32_fraction = 0.7;
  double memory_fraction = 0.8, link_fraction = 0.8;  ///< Of the rates of memory and links.
  /// Seconds until a collective begins, and of a hop within a node and between nodes.
  double call_latency = 10e-6, node_latency = 1e-6, network_latency = 5e-6;
  /// Times that routing reads or writes its logits [T, E] in a forward and a backward pass.
  double routing_forward = 16.0, routing_backward = 8.0;
};

/// A step of a phase as one of the processes sees it.
struct ScalingPlan {
  int64_t images = 0;  ///< Images of a process in a step.
  /// Of a process, with all experts' rows and without batches and the communication library's own.
  TrainingMemory memory;
  /// Those of one update, however many parts its batch has, but for what sends nothing.
  std::vector<Collective> collectives;
  /// Seconds of forward and backward passes, of routing all processes' tokens or its own, of the
  /// optimizer, and of communication that nothing overlaps.
  double products = 0.0, routing = 0.0, update = 0.0, waiting = 0.0;
  /// Time of the same step without communication and without the tokens of others, over step().
  double efficiency = 1.0;
  double images_per_second = 0.0;  ///< Of all processes.
  double peak_fraction = 0.0;      ///< FLOP/s of 3 forward passes over the GPU's peak.

  double step() const { return products + routing + update + waiting; }
  double bytes_sent() const;
};

/// Plans a phase of kind "gradient" that has steps; what a process sends is counted in a step of
/// `model`, the phase's network, or one of nearly the same shape, on the meta device. Throws Error
/// (usage) as check_mesh() does.
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
