// SPDX-License-Identifier: Apache-2.0
// The interface of a phase, through which the Trainer runs it, and the kinds of phases that the
// configuration of a run can name.
#pragma once

#include "moesaic/base/error.h"
#include "moesaic/base/registry.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/models/model.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/phase_config.h"

namespace moesaic {

/// Report of a step.
struct StepReport {
  std::map<std::string, double> metrics;  ///< Means over the steps, e.g. of the loss and its terms.
  std::optional<double> lr;               ///< Learning rate, where there is one.
  int64_t images = 0;                     ///< Number of examples of the step.
  /// Number of steps made: 1, more for a chunk of steps, 0 where the phase ended
  /// instead.
  int64_t steps = 1;
  /// Defined where a device may still compute the metrics, which are empty then: waits for them and
  /// returns them. Throws DivergedError where they are not finite; the network is then as it was
  /// before this step, whatever steps followed.
  std::function<std::map<std::string, double>()> deferred_metrics = {};
};

/// Returns whether the steps after `before`, up to `after`, reach a multiple of `every`, where 0
/// has none: a chunk of steps may jump over it.
inline bool passes_multiple(int64_t before, int64_t after, int64_t every) {
  return every > 0 && after / every > before / every;
}

/// All that later steps of a phase depend on, apart from the network's parameters.
struct PhaseState {
  Json values = Json::object();
  TensorMap tensors = {};
};

class ProcessMesh;  // parallel/process_mesh.h

/// A stage of training.
class Phase {
 public:
  virtual ~Phase() = default;

  /// Returns whether the phase has no step left.
  virtual bool is_done() const = 0;
  /// Makes a step, or a chunk of steps. Throws DivergedError, before the network changes, where
  /// values are not finite, or leaves that to StepReport::deferred_metrics.
  virtual StepReport step() = 0;
  /// Ends a step: the processes exchange what only one of them has met. All processes call this,
  /// with null where this one is alone. Returns the largest `signal` of all.
  virtual int sync_step(int signal, const ProcessMesh* processes);
  /// Exchanges the network's weights and their average, which evaluations measure; a second call
  /// changes them back. By default there is none.
  virtual void swap_average() {}
  /// Returns what to change where training diverges, as the end of a message; "" if nothing is
  /// known.
  virtual std::string divergence_hint() const { return {}; }

  /// Returns all that later steps depend on.
  virtual PhaseState state() const = 0;
  /// Restores a result of state(), after which the phase continues with the same bits. Throws Error
  /// for an invalid state.
  virtual void load(const PhaseState& state) = 0;
};

/// Returns the seed of all random numbers of one phase of a run.
uint64_t phase_seed(int64_t run_seed, int64_t phase_index);

/// A phase as planned before training starts.
struct PhasePlan {
  PhaseConfig config;
  std::string precision = "float32";      ///< Precision of the run.
  bool activation_checkpointing = false;  ///< Activation checkpointing of the run.
  int64_t num_outputs = 0;           ///< Outputs of the network: classes, or real-valued targets.
  std::vector<std::string> classes;  ///< Names of the outputs, in a run that begins with the plan.
  int64_t num_images = 0;            ///< Number of images in the training split.
  int64_t batch_size = 0;            ///< Images per step.
  int64_t steps_per_epoch = 1;       ///< Number of steps per epoch, without a dropped last batch.
  int64_t steps = 0;                 ///< Number of steps of the phase.
  int64_t num_trained_parameters = 0;  ///< Number of values that the phase trains, after its entry.
  /// Number of values of the teacher, see train/distill.h; 0: there is none.
  int64_t num_teacher_parameters = 0;
};

/// The inputs of a phase that runs.
struct PhaseContext {
  std::shared_ptr<Model> model;
  std::shared_ptr<const Dataset> data;  ///< Training split, preprocessed.
  uint64_t seed = 0;                    ///< Result of phase_seed().
  uint64_t run_seed = 0;                ///< Seed of what a run's phases share, such as samples.
  int64_t num_loader_threads = 0;
  /// Whether StepReport::deferred_metrics may be used. By default it is on every device but the
  /// CPU, where reading waits for nothing.
  std::optional<bool> defer_metrics = {};
  /// Processes that share the batches, with experts shared already; null: this one is alone.
  std::shared_ptr<const ProcessMesh> processes = {};
  /// Called by phases whose kind says so, in each step and in swap_average(), before parameters or
  /// the tensors of the phase's state change; what the forward passes change are other tensors. May
  /// throw.
  std::function<void()> before_optimizer_step = {};
  bool measures_loads = false;  ///< Whether gradient phases report loads, see ExpertLoadMeter.
};

/// Memory of a step of a phase.
struct StepMemory {
  double gradients = 0.0;         ///< Bytes of the gradients.
  double optimizer = 0.0;         ///< Bytes of the optimizer state.
  int64_t num_micro_batches = 1;  ///< Number of micro-batches of a batch.
  std::string update_rules = {};  ///< Names of the update rules, for messages.
};

/// A registry entry of a kind of phases.
struct PhaseKind {
  NamedSettings settings;   ///< Name and default settings.
  std::string description;  ///< Description for lists of kinds.
  /// Completes a plan with batch, steps_per_epoch and steps, and checks the settings against
  /// network and data, which have no values in a dry run. Throws Error (usage) with the location of
  /// an invalid setting.
  std::function<void(PhasePlan& plan, const SettingLocations& locations, const Model& model,
                     const Dataset& data)>
      plan;
  std::function<std::unique_ptr<Phase>(const PhasePlan& plan, PhaseContext context)> make;
  /// Returns the memory of a step apart from the weights; an empty function means none.
  std::function<StepMemory(const PhaseConfig& phase, const Model& model)> memory = {};
  /// Returns the name of the objective that a phase minimises, whose loss evaluations measure; an
  /// empty function means none.
  std::function<std::string(const PhaseConfig& phase)> objective = {};
  /// Checks that so many processes can share the batches. Throws Error (usage) with the location of
  /// the setting. An empty function means that all of them make the same steps.
  std::function<void(const PhasePlan& plan, const SettingLocations& locations, int64_t processes)>
      check_processes = {};
  /// Whether its phases call PhaseContext::before_optimizer_step: saving goes on until then.
  bool overlaps_save = false;
};

/// Returns the registry of kinds: "gradient" (train/gradient_phase.h), those of papers/, and those
/// from outside of the library.
Registry<PhaseKind>& phase_kinds();

/// Returns the names of the parameters that the settings `trainable` and `frozen` let the phase
/// train.
std::vector<std::string> trained_parameters(const Model& model, const PhaseConfig& phase);

/// A phase that makes its steps by formulas on samples in order, apart from optimizers and loaders:
/// plan.steps of them, or fewer. The phase's state is the number of steps made and, by a name of
/// the phase's, whether its end condition was met.
class OnlinePhase : public Phase {
 public:
  bool is_done() const override { return steps_done_ >= plan_.steps || has_reached_end_; }
  StepReport step() final;
  PhaseState state() const override;
  void load(const PhaseState& state) override;

 protected:
  /// `end` is that name; "": only the number of steps ends the phase.
  OnlinePhase(const PhasePlan& plan, PhaseContext context, std::string end = "");

  /// Makes step(), without gradients; the steps of its report count as made afterwards.
  virtual StepReport make_step() = 0;
  /// Returns samples, which are no images, from number `first` of the phase on. They begin where
  /// the seed says, so that runs of different seeds see different ones. Epochs of data that are not
  /// endless repeat, without an incomplete last batch.
  DatasetInputs inputs(int64_t first, int64_t count) const;
  /// Returns the steps of the next block of at most so many.
  int64_t steps_of(int64_t block) const { return std::min(block, plan_.steps - steps_done_); }
  /// Returns the advice to lower a setting of the phase.
  std::string lower_hint(const std::string& setting, double now) const;
  /// Throws DivergedError where the loss or a weight is not finite.
  static void check_finite(double loss, const std::vector<at::Tensor>& weights);

  PhasePlan plan_;
  PhaseContext context_;
  int64_t steps_done_ = 0;
  bool has_reached_end_ = false;
  int64_t offset_;  ///< Number of the phase's first sample in the data.

 private:
  DatasetInputs all_;  ///< Of data that are neither images nor endless.
  /// Name of `has_reached_end_` in the state; empty: only the number of steps ends the phase.
  std::string end_key_;
};

/// Completes a plan with `batch` samples of the data per step. Throws Error (usage) where there are
/// fewer.
void plan_steps(PhasePlan& plan, const SettingLocations& locations, const Dataset& data,
                int64_t batch);

/// Throws Error (usage), with the reason, where 'trainable' and 'frozen' would keep a parameter
/// from being trained.
void check_all_trained(const PhasePlan& plan, const SettingLocations& locations, const Model& model,
                       const std::string& reason);

/// Returns the only MoE layer of a network if its experts are of the class, or nothing.
template <class Experts>
std::optional<nn::MoELayer> find_layer_of(const Model& model) {
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  if (blocks.size() != 1 || blocks[0].layer->experts->as<Experts>() == nullptr) return {};
  return blocks[0].layer;
}

/// Throws Error (usage): phases of this kind need `what`.
[[noreturn]] void fail_needs(const SettingLocations& locations, const std::string& place,
                             const std::string& what);

// Checks of settings that the plan of a run and that of a kind of phases share. All throw Error
// (usage) with the location of the setting.

/// Routes so many tokens on the meta device: throws what a block's router throws with this rule,
/// that of training or of evaluation.
void check_tokens(const SettingLocations& locations, const Model& model, const MoEBlock& block,
                  const RouteOptions& rule, int64_t tokens);

/// Throws Error (usage) for a pattern of the list `setting` of the phase that matches no parameter,
/// with its location and the nearest parameters.
void check_patterns(const Model& model, const SettingLocations& locations,
                    const std::string& setting, const std::vector<std::string>& patterns);

/// Returns a contiguous float32 copy on the CPU.
at::Tensor host_copy(const at::Tensor& tensor);

/// Returns a copy of the router's rows whose experts exist, [K, d] float32 on the CPU.
at::Tensor router_rows(const nn::MoELayer& layer);
/// Writes the router's rows whose experts exist.
void set_router_rows(const nn::MoELayer& layer, const at::Tensor& router_Kd);

/// Adds a kind of phases of class Made to the registry, whose add() it returns.
template <class Made, class Config, auto plan_phase>
bool add_phase_kind(const std::string& name, const std::string& description) {
  const auto make = [](const PhasePlan& plan, PhaseContext context) -> std::unique_ptr<Phase> {
    return std::make_unique<Made>(plan, std::move(context));
  };
  const Config defaults;
  return phase_kinds().add(name, {.settings = NamedSettings(name, defaults),
                                  .description = description,
                                  .plan = plan_phase,
                                  .make = make});
}

/// An add_phase_kind(): a constinit constant, since initialisers of other files call it.
using AddPhaseKind = bool (*const)(const std::string& name, const std::string& description);

}  // namespace moesaic
