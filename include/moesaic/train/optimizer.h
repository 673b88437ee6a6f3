// SPDX-License-Identifier: Apache-2.0
// Optimizers, which update named parameters from their gradients. All that later updates depend on
// is in state() and updates(), so that a restored optimizer continues with the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/checkpoint/tensors.h"
#include "moesaic/train/gradient_config.h"

namespace moesaic {

class Processes;  // parallel/processes.h

/// Update rule of a group of parameters. Rules keep their state in slots: tensors of the
/// parameters' shapes, initially zero.
class UpdateRule {
 public:
  struct Group {
    std::vector<at::Tensor> parameters, gradients;
    std::vector<std::vector<at::Tensor>> slots;  ///< Indexed by [slot][parameter].
    double weight_decay = 0.0;
    at::Tensor skip = {};  ///< Float32 scalar: where it is 1, nothing changes; undefined: 0.
  };

  virtual ~UpdateRule() = default;
  virtual std::vector<std::string> slot_names() const = 0;
  /// Transforms all gradients of the optimizer at once, before apply() gets them group by group.
  /// `names` are those of their parameters.
  virtual void prepare(const std::vector<std::string>& names,
                       std::vector<at::Tensor>& gradients) const {}
  /// Updates a group of parameters; `update` counts from 1.
  virtual void apply(Group& group, double lr, int64_t update) const = 0;
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

class Optimizer {
 public:
  using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

  /// Parameters whose names match a pattern of `frozen` have gradients but are never updated. Each
  /// of `parts` takes the parameters that match one of its patterns and belong to no earlier part;
  /// `config` updates the others.
  Optimizer(NamedParameters parameters, const OptimizerConfig& config,
            const std::vector<std::string>& frozen = {},
            const std::vector<PartOptimizerConfig>& parts = {});

  using NameTest = std::function<bool(const std::string& name)>;

  /// Divides the state of the parameters that all processes have among them (ZeRO-1,
  /// arXiv:1910.02054): each keeps the slots of whole parameters, which it updates and sends to the
  /// others. Those with a name in `everywhere`, such as those of shared experts, stay as they are.
  /// Call it before anything else.
  void share_state(std::shared_ptr<const Processes> processes, const NameTest& everywhere);

  /// Numbers of float32.
  struct Share {
    int64_t state = 0, updated = 0;
  };
  /// Returns the most that one process keeps and updates.
  Share largest_share() const;

  /// Sends each parameter from the process that keeps its state to the others, as step() does.
  void spread() const;

  /// Multiplies each gradient by the value of the first pattern that matches its parameter's name,
  /// if there is one.
  void scale_gradients(const PatternValues& factors);
  /// Updates every parameter that is not frozen. A parameter without a gradient is updated as with
  /// a gradient of zeros, by its momentum and weight decay. `lr` is the learning rate of `config`;
  /// those of the parts are `part_lrs`, or keep their ratio to it where there is none. Where
  /// `skip`, a float32 scalar on the parameters' device, is 1, parameters and state() keep their
  /// bits, whatever the gradients hold; the host need not know.
  void step(double lr, const std::vector<std::optional<double>>& part_lrs = {},
            const at::Tensor& skip = {});
  /// Clears the gradients.
  void zero_grad();
  /// Returns the defined gradients; changing them in place changes the next step.
  std::vector<at::Tensor> gradients() const;

  /// Returns the number of updates made so far.
  int64_t updates() const { return updates_; }
  /// Returns the slots, whose memory is shared: "<parameter>.momentum" for sgd,
  /// "<parameter>.exp_avg" and ".exp_avg_sq" for adamw. Where processes share the state, only those
  /// of this one.
  TensorMap state() const;
  /// Restores copies of state() and updates(); that of other processes is passed over. Throws Error
  /// that names a tensor that is missing, unexpected or of another shape.
  void load_state(const TensorMap& state, int64_t updates);

 private:
  static constexpr int64_t kEvery = -1;

  struct Entry {
    std::string name;
    at::Tensor parameter;
    std::vector<at::Tensor> slots;
    double weight_decay = 0.0;
    bool frozen = false;
    int64_t owner = kEvery;  ///< Rank of the process that updates it.
  };
  /// The parameters of one update rule.
  struct Part {
    std::unique_ptr<UpdateRule> rule;
    double rate = 1.0;  ///< Learning rate relative to the optimizer's.
    double l2 = 0.0;
    std::vector<Entry> entries;
    std::set<double> weight_decays;
  };

  void add_part(const OptimizerConfig& config, double rate, const Patterns& of,
                const std::vector<std::string>& frozen, NamedParameters& parameters);
  static std::vector<at::Tensor> prepared_gradients(const Part& part);
  bool is_own(const Entry& entry) const;
  /// Returns whether it is a slot of a parameter that another process updates.
  bool is_of_others(const std::string& slot) const;
  void step_part(const Part& part, double lr, const at::Tensor& skip) const;

  template <class Use>
  void for_entries(const Use& use) const {
    for (const Part& part : parts_) {
      for (const Entry& entry : part.entries) use(entry);
    }
  }

  std::vector<Part> parts_;
  std::shared_ptr<const Processes> processes_;  ///< Who share the state; null: nobody.
  int64_t updates_ = 0;
};

/// Returns the global Euclidean norm of gradients, a scalar of their dtype (float32 without any).
at::Tensor gradient_norm(const std::vector<at::Tensor>& gradients);

/// Clips by global norm in place (Pascanu et al., arXiv:1211.5063): gradients with `norm` >=
/// `limit` are multiplied by limit / norm, others keep their bits. `norm` is a scalar on the
/// gradients' device, which alone decides: nothing waits for it. `limit` 0 clips nothing.
void clip_gradients(std::vector<at::Tensor>& gradients, const at::Tensor& norm, double limit);

/// Clips every value to [-limit, limit] in place. `limit` 0 clips nothing.
void clip_gradient_values(std::vector<at::Tensor>& gradients, double limit);

/// Returns the learning rate of update i = 0, 1, ..., `steps` - 1 of a phase. With w warm-up
/// updates, peak p and end e (end_lr, or p times the fraction `end`):
///
///     i < w:   p i / w
///     i >= w:  e + (p - e) f(x),  x = (i - w) / (steps - w), at most 1
///
/// where f(x) is (1 + cos(pi x)) / 2 for cosine, 1 - x for linear and 1 for constant. rsqrt is
/// p / sqrt(1 + (i - w) / timescale), and falls linearly to 0 over the cooldown (Zhai et al.,
/// arXiv:2106.04560). A cosine with a period T has x = (i - w) / T without that bound: its rate
/// rises again after T updates. `by_epoch` rounds i down to the first update of its epoch, and T
/// counts epochs. As in V-MoE the first warm-up update has rate 0: it changes the momenta only.
double learning_rate(const ScheduleConfig& schedule, double peak, int64_t update, int64_t steps,
                     int64_t steps_per_epoch = 1);

}  // namespace moesaic
