// SPDX-License-Identifier: Apache-2.0
// The network that a run starts with, the plan of its phases, checked before anything is trained,
// and the memory that they need.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/checkpoint/store.h"
#include "moesaic/models/model.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/phase.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

struct ScalingOptions;  // train/scaling.h

/// Start of a run. `init` is read and hashed once, however many networks are made from it.
class RunStart {
 public:
  /// Reads config.init, if it is given, without its optimizer. Throws Error (usage), with its
  /// location, for a path that is neither a run nor a checkpoint.
  explicit RunStart(const RunConfig& config);

  /// Returns the network of config.model, or of config.init where that is null, on the meta device:
  /// shapes without values (build_model_shape()).
  std::shared_ptr<Model> shape() const { return shape_; }

  /// Returns the network with the values of the first step: those of config.init, or else initial
  /// ones by config.seed. Where config.model differs from the network of `init` as its family
  /// allows in fine-tuning, or the first phase gives a new head, the rest is taken from `init`. No
  /// other network is allocated. Throws Error where shapes do not fit or memory does not suffice,
  /// for training or for this network beside the tensors of `init`.
  std::shared_ptr<Model> model() const;

  /// Returns a text that tells other weights or names of `init` from these, "" without it.
  std::string mark() const;
  /// Returns the names of the outputs of `init`, none without it or where it stores none.
  std::vector<std::string> classes() const;

 private:
  RunConfig config_;  ///< Its model is that of `init` where it had none.
  std::optional<Checkpoint> init_;
  std::shared_ptr<Model> shape_;
};

/// Returns what RunStart(config).shape() does, read from the configuration of `init` alone,
/// unverified.
std::shared_ptr<Model> build_initial_shape(const RunConfig& config);

/// Throws where `init` is there and is no run or checkpoint that can be read.
void check_init(const RunConfig& config);

/// Checks what RunStart::model() would load, by its configuration and the hashes of its files,
/// without memory for the weights. `shape` is build_initial_shape(), whose head it may replace.
void check_initial_weights(const RunConfig& config, Model& shape);

/// What becomes of a pre-trained checkpoint that is not there: an error, or a warning in a dry run.
enum class MissingFiles { refused, planned };

/// Checks phases, network and data against one another and plans each phase. Throws Error (usage)
/// with the location of the setting at fault, e.g. for classes that differ without a new head,
/// images of another shape, a pattern that matches no parameter, pruning without its pre-trained
/// network. config.model serves for locations only and should stay as it was written.
std::vector<PhasePlan> plan_phases(const RunConfig& config, const Model& model, Datasets& datasets,
                                   MissingFiles missing = MissingFiles::refused);

/// Returns the network and the phases as a table of text, for --dry-run.
std::string describe_run(const RunConfig& config, const Model& model,
                         const std::vector<PhasePlan>& phases);

/// Checks a run as far as possible without training it, and returns its plan as text: network,
/// phases and memory. Nothing is allocated; data and `init` that are missing are reported in the
/// log and in the text where descriptions do without them. Throws Error (usage) as plan_phases()
/// does. With `scaling` the plan of many processes is added, see describe_scaling().
std::string dry_run(const RunConfig& given, const ScalingOptions* scaling = nullptr);

/// Returns inputs of so many images on the meta device.
at::Tensor meta_inputs(const Model& model, int64_t images);

/// Memory of a phase in bytes, without the process itself, its data, buffers within operators of
/// LibTorch and gaps in the heap.
struct TrainingMemory {
  double weights = 0.0, gradients = 0.0, optimizer = 0.0;
  double batches = 0.0;  ///< The batch that is trained on and those that are prepared ahead.
  /// What else a step holds at once at most, in float32: what backward needs and what it makes, or
  /// what an evaluation's forward pass holds, where that is more. Unset means unknown.
  std::optional<double> activations = 0.0;
  double buffers = 0.0;  ///< Of several processes: routing of others' tokens, rows under way.

  /// Returns the sum of what is known.
  double sum() const {
    return weights + gradients + optimizer + batches + activations.value_or(0.0) + buffers;
  }
};

/// Estimates the memory of a phase whose evaluations have batches of `evaluate_batch` images; 0:
/// there are none. `model` is the phase's network, or one of nearly the same shape, on the meta
/// device (build_model_shape()).
TrainingMemory training_memory(Model& model, const PhasePlan& phase, int64_t evaluate_batch = 0);

/// Returns what a step of `images` images at once holds at most, in bytes of float32, beside
/// parameters and gradients that lie there all the time, as processes that share a batch keep them;
/// nothing if it is unknown. `model` is as for training_memory().
std::optional<double> activation_memory(Model& model, const PhasePlan& phase, int64_t images);

/// Throws Error (usage), located at the model, if weights, gradients and optimizer state of a phase
/// exceed this machine's memory; activations are not counted.
void check_training_memory(const RunConfig& config, const Model& shape);

/// Returns a line of text for each phase that trains, for --dry-run. What this process has now, its
/// data among it, is added.
std::string describe_memory(Model& model, const RunConfig& config,
                            const std::vector<PhasePlan>& phases);

}  // namespace moesaic
