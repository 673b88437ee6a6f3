// SPDX-License-Identifier: Apache-2.0
// The phase kind "gradient" with its settings and its optimizers, which update named parameters:
// mini-batches, an objective, autograd and optimizers. All that later steps of an optimizer
// depend on is in its state() and num_steps(), so that a restored one continues with the same bits.
#pragma once

#include <set>

#include "moesaic/base/pattern.h"
#include "moesaic/data/transforms.h"
#include "moesaic/parallel/process_group.h"
#include "moesaic/train/expert_loads.h"
#include "moesaic/train/objective.h"
#include "moesaic/train/phase.h"

namespace moesaic {

/// A value for all names that a pattern matches.
struct PatternValue {
  std::string pattern;
  double value = 0.0;
};
void describe(auto& f, PatternValue& c) {
  f("pattern", c.pattern, "regular expression searched in the names of parameters", required,
    not_empty);
  f("value", c.value, "value for the parameters whose first matching pattern is this one", required,
    at_least(0.0));
}

/// A list of PatternValue, whose patterns are compiled once.
class PatternValues {
 public:
  /// Throws as Pattern does.
  explicit PatternValues(const std::vector<PatternValue>& values);

  /// Returns whether there is no pattern.
  bool empty() const { return values_.empty(); }
  /// Returns the value of the first pattern that matches `name`, else `otherwise`.
  double value_for(const std::string& name, double otherwise) const;

 private:
  Patterns patterns_;
  std::vector<double> values_;
};

/// Settings of an update rule, see make_update_rule().
struct OptimizerConfig {
  std::string name = "adamw";
  double lr = 1e-3, layer_decay = 1.0;
  double momentum = 0.9;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.0;
  double l2 = 0.0;
  std::string expert_norm = "joint";
  std::vector<std::string> no_decay = {"(bias|b[12]|cls|position_embedding)$", "norm"};
  std::vector<PatternValue> weight_decays;
};
void describe(auto& f, OptimizerConfig& c) {
  f("name", c.name, "name of the update rule", one_of({"sgd", "normalized_sgd", "adam", "adamw"}),
    common);
  f("lr", c.lr, "peak learning rate", above(0.0), common);
  f("layer_decay", c.layer_decay,
    "factor on the learning rate for each layer below the head: layer_decay for the last block, "
    "layer_decay^2 for the one before, and so on down to the embedding; 1: the same rate for all",
    above(0.0), at_most(1.0));
  f("momentum", c.momentum,
    "momentum of sgd: factor on the running sum of gradients before a new gradient is added",
    at_least(0.0), below(1.0));
  f("betas", c.betas, "decay rates of the two moments of adam and adamw", at_least(0.0),
    below(1.0));
  f("eps", c.eps, "term added to the square root of the second moment, in adam and adamw",
    above(0.0));
  f("weight_decay", c.weight_decay,
    "decoupled weight decay; a step also subtracts lr * weight_decay * parameter; 0: none",
    at_least(0.0), common);
  f("l2", c.l2,
    "coupled weight decay: l2 * parameter is added to the gradient first, in normalized_sgd after "
    "the normalization; 0: none",
    at_least(0.0));
  f("expert_norm", c.expert_norm,
    "norm by which normalized_sgd divides an expert's gradients: their joint norm or the sum of "
    "the norms of its tensors",
    one_of({"joint", "sum"}));
  f("no_decay", c.no_decay,
    "parameters without weight decay: regular expressions searched in their names");
  f("weight_decays", c.weight_decays,
    "weight decay by pattern of parameter names, instead of weight_decay and no_decay; parameters "
    "that match no pattern: 0; empty: weight_decay and no_decay");
}
ConfigProblem config_problem(const OptimizerConfig& config);

/// Settings of the learning rate's schedule.
struct ScheduleConfig {
  std::string name = "cosine";
  int64_t warmup_steps = 0;
  double end = 0.0;
  std::optional<double> end_lr;
  int64_t timescale = 10000, cooldown_steps = 0;
  std::optional<int64_t> period;
  bool by_epoch = false;
};
void describe(auto& f, ScheduleConfig& c) {
  f("name", c.name, "learning rate schedule after the warm-up",
    one_of({"cosine", "linear", "constant", "rsqrt"}), common);
  f("warmup_steps", c.warmup_steps, "length in steps of the linear warm-up from 0", at_least(0),
    common);
  f("end", c.end, "fraction of the peak learning rate at the phase's end; 0: down to 0",
    between(0.0, 1.0));
  f("end_lr", c.end_lr, "learning rate at the phase's end; null: set by end", at_least(0.0));
  f("timescale", c.timescale,
    "number of steps of rsqrt after which 1 / sqrt(2) of the peak is left", at_least(1));
  f("cooldown_steps", c.cooldown_steps,
    "length in steps of the final linear cooldown of rsqrt to 0", at_least(0));
  f("period", c.period,
    "half period of cosine: steps from the peak to the end, and as many back; null: the phase's "
    "length",
    at_least(1));
  f("by_epoch", c.by_epoch,
    "unit of the schedule: epochs (true), with a constant learning rate within an epoch, or "
    "steps (false)");
}
ConfigProblem config_problem(const ScheduleConfig& config);

/// Settings of an optimizer of some parameters.
struct ParamGroupConfig {
  std::vector<std::string> parameters;
  OptimizerConfig optimizer;
  std::optional<ScheduleConfig> schedule;
};
void describe(auto& f, ParamGroupConfig& c) {
  f("parameters", c.parameters,
    "parameters of this optimizer: regular expressions searched in their names", required,
    not_empty);
  f("optimizer", c.optimizer, "update rule of these parameters", required);
  f("schedule", c.schedule, "learning rate schedule of these parameters; null: the phase's");
}
ConfigProblem config_problem(const ParamGroupConfig& config);

/// Settings of early stopping.
struct StopConfig {
  double loss_threshold = 0.0;
  std::optional<double> loss_rise;
  int64_t min_steps = 0;
};
void describe(auto& f, StopConfig& c) {
  f("loss_threshold", c.loss_threshold,
    "loss at or below which the phase ends, at the first step whose loss is above the "
    "smallest so far; 0: none",
    at_least(0.0));
  f("loss_rise", c.loss_rise,
    "rise of the loss above the smallest so far that ends the phase; null: none", at_least(0.0));
  f("min_steps", c.min_steps,
    "number of steps before the phase may end early; 0: from the first step on", at_least(0),
    renamed_from("after_steps"));
}

inline constexpr const char *kConsecutive = "consecutive", *kStrided = "strided";

/// Settings of a phase of kind "gradient".
struct GradientConfig {
  int64_t num_samples = 0, batch_size = 128;
  bool drop_last = true;
  int64_t gradient_accumulation_steps = 1;
  std::string micro_batch_order = kConsecutive;
  OptimizerConfig optimizer;
  std::vector<ParamGroupConfig> optimizers;
  ScheduleConfig schedule;
  std::optional<StopConfig> stop;
  std::vector<PatternValue> gradient_scale;
  double clip_norm = 0.0, clip_value = 0.0, ema_decay = 0.0;
  NamedSettings loss = objective_choices().front();
  AugmentConfig augment;
};
void describe(auto& f, GradientConfig& c) {
  f("num_samples", c.num_samples,
    "number of training samples, drawn by the run's seed, equally many of each class where there "
    "are enough; a larger number includes the samples of a smaller one; 0: all",
    at_least(0), renamed_from("samples"));
  f("batch_size", c.batch_size, "number of images per step", between(1, kMaxBatchSize), common,
    known_as({"train_batch_size"}));
  f("drop_last", c.drop_last,
    "omission of an epoch's last batch where it is smaller than batch_size; false: a step on it, "
    "which needs one process and no micro-batches");
  f("gradient_accumulation_steps", c.gradient_accumulation_steps,
    "number of micro-batches of equal size per step, whose gradients are averaged",
    between(1, kMaxBatchSize), renamed_from("accumulate"),
    known_as({"accum_steps", "grad_accum_steps"}));
  f("micro_batch_order", c.micro_batch_order,
    "images of a micro-batch: consecutive ones of the batch or, as in V-MoE's trainer, ones whose "
    "indices differ by the number of micro-batches (strided)",
    one_of({kConsecutive, kStrided}), renamed_from("accumulate_order"));
  f("optimizer", c.optimizer, "optimizer of the parameters");
  f("optimizers", c.optimizers, "further optimizers for some of the parameters; empty: none");
  f("schedule", c.schedule, "learning rate schedule of the phase",
    known_as({"lr_scheduler", "lr_scheduler_type", "scheduler"}));
  f("stop", c.stop,
    "conditions on a step's loss, either of which ends the phase before the step, unless the loss "
    "is the smallest so far; null: none");
  f("gradient_scale", c.gradient_scale,
    "factors on gradients by parameter, before clipping; empty: none");
  f("clip_norm", c.clip_norm, "largest global norm of the gradients; 0: no clipping", at_least(0.0),
    common, known_as({"clip_grad", "grad_clip", "gradient_clip_val", "max_grad_norm"}));
  f("clip_value", c.clip_value, "largest magnitude of a gradient's elements; 0: no clipping",
    at_least(0.0));
  f("ema_decay", c.ema_decay,
    "decay d of an average of the weights, d * average + (1 - d) * weights after each step; the "
    "phase evaluates, saves as best and ends with that average; 0: none",
    at_least(0.0), below(1.0), known_as({"model_ema", "model_ema_decay"}));
  f.choice("loss", c.loss, objective_choices(), "training objective to minimise", common);
  f("augment", c.augment, "random augmentation of the images");
}
ConfigProblem config_problem(const GradientConfig& config);

/// Update rule of a group of parameters. Rules keep their state in slots: tensors of the
/// parameters' shapes, initially zero.
class UpdateRule {
 public:
  /// Parameters that are updated together.
  struct Group {
    std::vector<at::Tensor> parameters, gradients;
    std::vector<std::vector<at::Tensor>> slots;  ///< Indexed by [slot][parameter].
    double weight_decay = 0.0;
    at::Tensor skip = {};  ///< Float32 scalar: where it is 1, nothing changes; undefined: 0.
  };

  virtual ~UpdateRule() = default;
  /// Returns the names of the slots, for checkpoints.
  virtual std::vector<std::string> slot_names() const = 0;
  /// Transforms all gradients of the optimizer at once, before apply() gets them group by group.
  /// `names` are those of their parameters.
  virtual void prepare(const std::vector<std::string>& names,
                       std::vector<at::Tensor>& gradients) const {}
  /// Updates a group of parameters; `step` counts from 1.
  virtual void apply(Group& group, double lr, int64_t step) const = 0;
};

/// sgd:    m <- g + momentum m;  p <- p - lr (m + weight_decay p)
/// adam:   adamw without weight decay
/// adamw:  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;
///         p <- p - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay p)
/// normalized_sgd: sgd with g_e / |g_e| in place of g_e, where |g_e| is the norm over all
///         parameters of expert e (clusters paper, eq. 3.4) or, by `expert_norm`, the sum of its
///         tensors' norms (the released code); an expert with zero gradient has a step of 0.
///         Experts that are separate networks are identified by their names, "experts.<e>."; in
///         other parameters the first dimension indexes the experts.
/// adamw: Loshchilov and Hutter, arXiv:1711.05101. Throws Error (usage) for another name.
std::unique_ptr<UpdateRule> make_update_rule(const OptimizerConfig& config);

/// Updates parameters, each by one rule, and keeps the rules' state.
class Optimizer {
 public:
  using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;
  using LayersAfter = std::function<std::optional<int64_t>(const std::string& parameter)>;

  /// Parameters whose names match a pattern of `frozen` have gradients but are never updated. Each
  /// of `param_groups` takes the parameters that match one of its patterns and belong to no earlier
  /// one; `config` updates the others. `layers_after` is Model's, by which `layer_decay` lowers
  /// rates.
  Optimizer(NamedParameters parameters, const OptimizerConfig& config,
            const std::vector<std::string>& frozen = {},
            const std::vector<ParamGroupConfig>& param_groups = {},
            const LayersAfter& layers_after = {});

  using NameTest = std::function<bool(const std::string& name)>;

  /// Divides the state of the parameters that all processes have among them (ZeRO-1,
  /// arXiv:1910.02054): each keeps the slots of whole parameters, which it updates and sends to the
  /// others. Parameters with a name in `is_replicated`, such as those of shared experts, stay as
  /// they are. Call it before anything else.
  void shard_state(std::shared_ptr<const ProcessMesh> processes, const NameTest& is_replicated);

  /// Numbers of float32 elements.
  struct StateShard {
    int64_t state = 0, updated = 0;
  };
  /// Returns the most that one process keeps and updates.
  StateShard max_state_shard() const;

  /// Sends each parameter from the process that keeps its state to the others, as step() does.
  void broadcast_parameters() const;

  /// Multiplies each gradient by the value of the first pattern that matches its parameter's name,
  /// if there is one.
  void scale_gradients(const PatternValues& factors);
  /// Updates every parameter that is not frozen. A parameter without a gradient is updated as with
  /// a gradient of zeros, by its momentum and weight decay. `lr` is the learning rate of `config`;
  /// those of the groups are `group_lrs`, or keep their ratio to it where there is none. Where
  /// `skip`, a float32 scalar on the parameters' device, is 1, parameters and state() keep their
  /// bits, whatever the gradients hold; without the host.
  void step(double lr, const std::vector<std::optional<double>>& group_lrs = {},
            const at::Tensor& skip = {});
  /// Clears the gradients.
  void zero_grad();
  /// Returns the defined gradients; changing them in place changes the next step.
  std::vector<at::Tensor> gradients() const;

  /// Returns the number of steps made so far.
  int64_t num_steps() const { return num_steps_; }
  /// Returns the slots, whose memory is shared: "<parameter>.momentum" for sgd,
  /// "<parameter>.exp_avg" and ".exp_avg_sq" for adamw. Where processes share the state, only those
  /// of this one.
  TensorMap state() const;
  /// Restores copies of state() and num_steps(); that of other processes is passed over. Throws
  /// Error that names a tensor that is missing, unexpected or of another shape.
  void load_state(const TensorMap& state, int64_t num_steps);

 private:
  static constexpr int64_t kAllRanks = -1;

  struct Entry {
    std::string name;
    at::Tensor parameter;
    std::vector<at::Tensor> slots;
    double weight_decay = 0.0;
    double lr_scale = 1.0;  ///< Learning rate relative to the group's, by the layer.
    bool is_frozen = false;
    int64_t owner = kAllRanks;  ///< Rank of the process that updates it.
  };
  /// The parameters of one update rule.
  struct ParamGroup {
    std::unique_ptr<UpdateRule> rule;
    double lr_scale = 1.0;  ///< Learning rate relative to the optimizer's.
    double l2 = 0.0;
    std::vector<Entry> entries;
    std::set<std::pair<double, double>> settings;  ///< Weight decays and rates of the entries.
  };

  void add_param_group(const OptimizerConfig& config, double lr_scale, const Patterns& selected,
                       const std::vector<std::string>& frozen, const LayersAfter& layers_after,
                       NamedParameters& parameters);
  static std::vector<at::Tensor> prepared_gradients(const ParamGroup& part);
  bool is_local(const Entry& entry) const;
  void step_group(const ParamGroup& part, double lr, const at::Tensor& skip) const;

  void for_entries(const auto& use) const {
    for (const ParamGroup& part : param_groups_) {
      for (const Entry& entry : part.entries) use(entry);
    }
  }

  std::vector<ParamGroup> param_groups_;
  std::shared_ptr<const ProcessMesh> processes_;  ///< Processes that share the state; null: none.
  int64_t num_steps_ = 0;
};

/// Returns the global Euclidean norm of gradients, a scalar of their dtype (float32 without any).
at::Tensor gradient_norm(const std::vector<at::Tensor>& gradients);

/// Clips by global norm in place (Pascanu et al., arXiv:1211.5063): gradients with `norm` >=
/// `limit` are multiplied by limit / norm, others keep their bits. `norm` is a scalar on the
/// gradients' device, which alone decides: nothing waits for it. `limit` 0 clips nothing.
void clip_gradients(std::vector<at::Tensor>& gradients, const at::Tensor& norm, double limit);

/// Clips every value to [-limit, limit] in place. `limit` 0 clips nothing.
void clip_gradient_values(std::vector<at::Tensor>& gradients, double limit);

/// Returns the learning rate of step i = 0, 1, ..., `steps` - 1 of a phase. With w warm-up
/// steps, peak p and end e (end_lr, or p times the fraction `end`):
///
///     i < w:   p i / w
///     i >= w:  e + (p - e) f(x),  x = (i - w) / (steps - w), at most 1
///
/// where f(x) is (1 + cos(pi x)) / 2 for cosine, 1 - x for linear and 1 for constant. rsqrt is
/// p / sqrt(1 + (i - w) / timescale), and falls linearly to 0 over the cooldown (Zhai et al.,
/// arXiv:2106.04560). A cosine with a period T has x = (i - w) / T without that bound: its rate
/// rises again after T steps. `by_epoch` rounds i down to the first step of its epoch, and T
/// counts epochs. As in V-MoE the first warm-up step has rate 0: it changes the momenta only.
double learning_rate(const ScheduleConfig& schedule, double peak, int64_t step, int64_t steps,
                     int64_t steps_per_epoch = 1);

/// Gradients of the mean of the processes' losses: for parameters that every process has, the mean
/// over all processes; for experts that a replica's processes share, the sum over them and the mean
/// over the replicas, divided by their number.
class DistributedGradients {
 public:
  /// Reduces the gradients of the model's parameters that require gradients at the time of the
  /// call.
  DistributedGradients(const Model& model, std::shared_ptr<const ProcessMesh> processes);

  /// Runs the last backward pass of a step, which reduces the gradients. Throws PeerFailure where
  /// another process does not take part.
  void backward(const at::Tensor& loss);
  /// Returns the norm of all gradients, those of other processes' experts among them.
  at::Tensor norm() const;

 private:
  std::shared_ptr<const ProcessMesh> processes_;
  std::vector<at::Tensor> dense_, experts_;  ///< Parameters; experts_ are the shared ones.
  GradientReducer of_dense_, of_experts_;
};

/// The exponential moving average of a network's weights, as timm's ModelEmaV2, in float32:
///
///     average <- decay average + (1 - decay) weights
///
/// of the parameters that require gradients and of buffers of real numbers. The average begins as
/// the weights.
class WeightAverage {
 public:
  /// With a `decay` of 0 nothing is averaged: the calls below do nothing.
  WeightAverage(const Model& model, double decay);

  /// Takes the weights after a step into the average.
  void update();
  /// Exchanges the network's weights and their average.
  void swap();
  /// Gives the network the average.
  void apply() const;

  /// Adds the average to the tensors of a checkpoint, as "<name>.ema".
  void save(TensorMap& tensors) const;
  /// Restores a copy of what save() added, and removes it from `tensors`. Throws Error that names a
  /// tensor that is missing or of another shape.
  void load(TensorMap& tensors);

 private:
  double decay_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> weights_, averages_;
};

/// Values of a gradient phase's state.
struct GradientPhaseState {
  int64_t epoch = 0, batch = 0, num_steps = 0;
  std::optional<double> min_loss;
  bool stopped = false;
  std::vector<int64_t> replaced;
};
void describe(auto& f, GradientPhaseState& c) {
  f("epoch", c.epoch, "epoch of the next batch in the phase, from 0", at_least(0));
  f("batch", c.batch, "index of the next batch in its epoch, from 0", at_least(0));
  f("updates", c.num_steps, "number of steps made by the phase's optimizers", at_least(0));
  f("min_loss", c.min_loss, "smallest loss of the phase's steps so far, for early stopping");
  f("stopped", c.stopped, "end of the phase by one of the conditions in 'stop'");
  f("replaced", c.replaced, "indices of the corrupt images replaced by others so far, sorted");
}

/// A phase of gradient descent, with as metrics the loss, the objective's terms, and the norm of
/// the gradients before clipping.
class GradientPhase : public Phase {
 public:
  /// Sets requires_grad to false for parameters that the phase does not train.
  GradientPhase(const PhasePlan& plan, PhaseContext context);

  bool is_done() const override { return state_.stopped || optimizer_.num_steps() >= plan_.steps; }
  /// Loads a batch, runs forward and backward, then scales, clips and updates, unless the loss ends
  /// the phase. Where the loss or the gradient norm is not finite, the parameters and the
  /// optimizers' state keep their bits. On the CPU, and on every device where `stop` is set and
  /// needs the loss, this throws DivergedError then; elsewhere the step reads no value of the
  /// device and leaves metrics and error to StepReport::deferred_metrics.
  StepReport step() override;
  int sync_step(int signal, const ProcessMesh* processes) override;
  void swap_average() override;
  /// Returns that the learning rate or the limit of the gradients should be lower, with both.
  std::string divergence_hint() const override;
  PhaseState state() const override;
  void load(const PhaseState& state) override;

 private:
  /// Named scalar tensors on the network's device.
  using Scalars = std::vector<std::pair<std::string, at::Tensor>>;

  /// Accumulates the gradients of the micro-batches, the last of which completes those of all
  /// processes; returns the means of their losses and terms.
  Scalars accumulate(const Batch& batch);
  /// Returns a report whose metrics are late, and from this step on updates skip_ where they tell.
  StepReport report_of(const Scalars& scalars);
  /// Returns the learning rate of the next step.
  double rate(const ScheduleConfig& schedule, const OptimizerConfig& optimizer) const;
  bool should_stop(double loss);

  PhasePlan plan_;
  const GradientConfig& config_;  ///< Part of plan_.
  uint64_t seed_;
  std::shared_ptr<Model> model_;
  std::shared_ptr<const ProcessMesh> processes_;  ///< Null: this one is alone.
  std::function<void()> before_optimizer_step_;
  std::unique_ptr<Objective> objective_;
  Optimizer optimizer_;
  WeightAverage average_;
  PatternValues gradient_scale_;
  bool defers_metrics_;
  at::Tensor skip_;  ///< Float32 scalar: 1 once a step was not finite; undefined on the first one.
  DeviceLoader loader_;
  std::optional<DistributedGradients> shared_;
  GradientPhaseState state_;
  std::map<int64_t, std::string> replaced_;  ///< Of the last batch, until sync_step().
  std::optional<ExpertLoadMeter> loads_;
};

/// Returns the registry's entry.
PhaseKind gradient_phase_kind();

/// Returns the parameters that `trainable` selects, the only ones that require gradients from now
/// on.
Optimizer::NamedParameters choose_parameters(Model& model, const PhaseConfig& phase);

}  // namespace moesaic
