// SPDX-License-Identifier: Apache-2.0
// The network that a run starts with; the checked plan of its phases; the memory that they need; a
// plan of training with many processes: memory, bytes and time of a step. docs/scaling.md derives
// the formulas.
#pragma once

#include "moesaic/checkpoint/store.h"
#include "moesaic/parallel/process_group.h"
#include "moesaic/train/phase.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

/// Start of a run. `init` is read and hashed once, however many networks are made from it.
class RunStart {
 public:
  /// Reads config.init, if it is given, without its optimizer. Throws Error (usage), with its
  /// location, for a path that is neither a run nor a checkpoint.
  explicit RunStart(const RunConfig& config);

  /// Returns the network of config.model, or of config.init where that is null, on the meta device:
  /// shapes without values (build_meta_model()).
  std::shared_ptr<Model> shape() const { return shape_; }

  /// Returns the network with the values of the first step: those of config.init, or else initial
  /// ones by config.seed. Where config.model differs from the network of `init` as its family
  /// allows in fine-tuning, or the first phase gives a new head, the rest is taken from `init`. No
  /// other network is allocated. Throws Error where shapes do not fit or memory does not suffice,
  /// for training or for this network beside the tensors of `init`.
  std::shared_ptr<Model> model() const;

  /// Returns a fingerprint of the weights and names of `init`, "" without it.
  std::string fingerprint() const;
  /// Returns the names of the outputs of `init`, none without it or where it stores none.
  std::vector<std::string> classes() const;

 private:
  RunConfig config_;  ///< With the model of `init` where none was given.
  std::optional<Checkpoint> init_;
  std::shared_ptr<Model> shape_;
};

/// Returns what RunStart(config).shape() does, read from the configuration of `init` alone,
/// unverified.
std::shared_ptr<Model> build_initial_meta_model(const RunConfig& config);

/// Checks what RunStart::model() would load, by its configuration and the hashes of its files,
/// without memory for the weights. `shape` is build_initial_meta_model(), whose head it may
/// replace.
void check_initial_weights(const RunConfig& config, Model& shape);

/// Treatment of a pretrained checkpoint that is not there: an error, or a warning in a dry run.
enum class MissingFiles { error, warn };

/// Checks phases, network and data against one another and plans each phase. Throws Error (usage)
/// with the location of the setting at fault, e.g. for classes that differ without a new head,
/// images of another shape, a pattern that matches no parameter, pruning without its pretrained
/// network. config.model serves for locations only and should stay as it was written.
std::vector<PhasePlan> plan_phases(const RunConfig& config, const Model& model,
                                   DatasetCache& datasets,
                                   MissingFiles missing = MissingFiles::error);

/// Returns the network and the phases as a table of text, for --dry-run.
std::string describe_run(const RunConfig& config, const Model& model,
                         const std::vector<PhasePlan>& phases);

/// Checks a run as far as possible without training it, and returns its plan as text: network,
/// phases and memory. Nothing is allocated; data and `init` that are missing are reported in the
/// log and in the text where descriptions do without them. Throws Error (usage) as plan_phases()
/// does. Given numbers of `processes`, the plan of each takes the place of the memory that this one
/// needs, see describe_scaling().
std::string dry_run(const RunConfig& given, const std::vector<int64_t>& processes = {},
                    const std::string& gpu = "h100");

/// Returns inputs of so many images on the meta device.
at::Tensor meta_inputs(const Model& model, int64_t images);

/// Memory of a phase in bytes, without the process itself, its data, buffers within operators of
/// LibTorch and gaps in the heap.
struct TrainingMemory {
  double weights = 0.0, gradients = 0.0, optimizer = 0.0;
  double teacher = 0.0;  ///< Weights of the teacher.
  double batches = 0.0;  ///< The batch that is trained on and those that are prepared ahead.
  /// What else a step holds at once at most, in float32: what backward needs and what it makes, or
  /// what an evaluation's forward pass holds, where that is more. Unset means unknown.
  std::optional<double> activations = 0.0;
  double buffers = 0.0;  ///< Routing of other processes' tokens, and rows in transit.

  /// Returns the sum of what is known.
  double sum() const {
    return weights + gradients + optimizer + teacher + batches + activations.value_or(0.0) +
           buffers;
  }
};

/// Estimates the memory of a phase whose evaluations have batches of `evaluate_batch` images; 0:
/// there are none. `model` is the phase's network, or one of nearly the same shape, on the meta
/// device (build_meta_model()).
TrainingMemory training_memory(Model& model, const PhasePlan& phase, int64_t evaluate_batch = 0);

/// Returns what a step of `images` images at once holds at most, in bytes of float32, beside
/// parameters and gradients that lie there all the time, as processes that share a batch keep them;
/// nothing if it is unknown. `model` is as for training_memory().
std::optional<double> activation_memory(Model& model, const PhasePlan& phase, int64_t images);

/// Throws Error (usage), located at the model, if weights, gradients and optimizer state of a phase
/// exceed this machine's memory; activations are not counted.
void check_training_memory(const RunConfig& config, const Model& shape);

/// Throws Error (usage), located at a phase's batch_size, if a step of it needs more than this
/// machine's memory. `model` is as for training_memory().
void check_step_memory(Model& model, const std::vector<PhasePlan>& phases);

/// Returns a line of text for each phase that trains, for --dry-run. What this process has now, its
/// data among it, is added.
std::string describe_memory(Model& model, const RunConfig& config,
                            const std::vector<PhasePlan>& phases);

/// A GPU and its links in the node that it is usually sold in: the vendor's figures, without
/// sparsity. docs/scaling.md names the sources.
struct Gpu {
  double float32 = 0.0, tf32 = 0.0, bfloat16 = 0.0;  ///< Peak FLOP/s of matrix products.
  double memory = 0.0, memory_rate = 0.0;            ///< Bytes, and bytes/s read or written.
  double node_rate = 0.0, network_rate = 0.0;  ///< Bytes/s sent within its node and to others.
};

/// Returns the registry of GPUs that `train --dry-run --gpu` knows; a program may add its own.
Registry<Gpu>& gpus();

/// All collectives of one purpose in a step, as one process takes part in them.
struct Collective {
  std::string name;
  Traffic traffic = Traffic::other;  ///< Purpose; of parameters, each process sends one broadcast.
  int64_t group = 1, stride = 1;     ///< Processes that take part, and the distance of their ranks.
  double calls = 0.0, bytes = 0.0;   ///< Calls in a step, and bytes that a process sends in them.
  double seconds = 0.0;              ///< Time of all calls, see plan_scaling().
};

/// All that the time of a step depends on beside the network: the GPU, and what is assumed.
struct ClusterModel {
  Gpu gpu = gpus().at("h100");
  bool tf32 = false;          ///< Products of float32 round their inputs.
  int64_t gpus_per_node = 8;  ///< GPUs of a node.
  /// Fractions that a whole step reaches of the peaks in bfloat16 and TF32 and in float32, and of
  /// the rates of memory and links.
  double tensor_fraction = 0.45, float32_fraction = 0.7, memory_fraction = 0.8, link_fraction = 0.8;
  /// Seconds until a collective begins, and of a hop within a node and between nodes.
  double call_latency = 10e-6, node_latency = 1e-6, network_latency = 5e-6;
  /// Times that routing reads or writes its logits [T, E] in a forward and a backward pass.
  double routing_forward = 16.0, routing_backward = 8.0;
};

/// A step of a phase as one of the processes sees it.
struct ScalingPlan {
  int64_t num_images = 0;  ///< Images of a process in a step.
  /// Memory of a process, with the rows of all experts and without batches and the communication
  /// library's own memory.
  TrainingMemory memory;
  /// Collectives of one step of the optimizer, for all micro-batches, without those that send
  /// nothing.
  std::vector<Collective> collectives;
  double bytes_sent = 0.0;  ///< Bytes of all of them.
  /// Seconds of forward and backward passes, of routing all processes' tokens or its own, of the
  /// optimizer, and of communication that nothing overlaps.
  double products = 0.0, routing = 0.0, update = 0.0, waiting = 0.0;
  /// Time of the same step without communication and without the tokens of others, over step().
  double efficiency = 1.0;
  /// Images per second of all processes; FLOP/s of 3 forward passes over the GPU's peak.
  double images_per_second = 0.0, peak_fraction = 0.0;

  /// Returns the time of the step in seconds.
  double step() const { return products + routing + update + waiting; }
};

/// Plans a phase of kind "gradient" that has steps for so many processes; what each sends is
/// counted in a step of `model`, the phase's network, or one of nearly the same shape, on the meta
/// device; docs/scaling.md has the formulas. Throws Error (usage) as training by these processes
/// would.
ScalingPlan plan_scaling(Model& model, const PhasePlan& phase, int64_t processes,
                         const ParallelConfig& parallel, const ClusterModel& cluster = {});

/// Returns the plan of each phase as text: all of it for one number of processes, a table for
/// several. Throws Error (usage) for a name that is not in gpus() and as plan_scaling() does.
std::string describe_scaling(Model& model, const RunConfig& config,
                             const std::vector<PhasePlan>& phases,
                             const std::vector<int64_t>& process_counts, const std::string& gpu);

}  // namespace moesaic
