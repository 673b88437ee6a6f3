// SPDX-License-Identifier: Apache-2.0
// The network that a run starts with, and the plan of its phases, checked before anything is
// trained.
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

}  // namespace moesaic
