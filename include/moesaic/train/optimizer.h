// SPDX-License-Identifier: Apache-2.0
// Updates named parameters from their gradients. Everything that a later update depends on is in
// state() and updates(), so that a saved optimizer goes on with the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/checkpoint/tensors.h"
#include "moesaic/train/optimizer_config.h"

namespace moesaic {

/// How one group of parameters moves. Rules keep their memory in slots: tensors like the
/// parameters, zero at first.
class UpdateRule {
 public:
  struct Group {
    std::vector<at::Tensor> parameters, gradients;
    std::vector<std::vector<at::Tensor>> slots;  ///< [slot][parameter]
    double weight_decay = 0.0;
  };

  virtual ~UpdateRule() = default;
  virtual std::vector<std::string> slot_names() const = 0;
  /// Changes all gradients of the optimizer at once, before apply() sees them group by group.
  /// names: of their parameters.
  virtual void prepare(const std::vector<std::string>& names,
                       std::vector<at::Tensor>& gradients) const {}
  /// `update` counts from 1.
  virtual void apply(Group& group, double lr, int64_t update) const = 0;
};

/// sgd:    m <- g + momentum m;  p <- p - lr (m + weight_decay p)
/// adam:   adamw without weight decay
/// adamw:  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;
///         p <- p - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay p)
/// normalized_sgd: sgd with g_e / |g_e| in place of g_e, |g_e| being the norm over all parameters
///         of expert e (clusters paper, eq. 3.4); an expert without gradient has a step of 0.
///         Experts that are networks of their own are told apart by their names, "experts.<e>."; of
///         the other parameters the first dimension counts the experts.
/// Loshchilov and Hutter, arXiv:1711.05101. Throws Error (usage) for another name.
std::unique_ptr<UpdateRule> make_update_rule(const OptimizerConfig& config);

class Optimizer {
 public:
  using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

  /// Parameters in whose name a pattern of `frozen` is found have gradients, but never move. Each
  /// of `parts` takes the parameters that no earlier one has and in whose names one of its patterns
  /// is found; `config` moves the others.
  Optimizer(NamedParameters parameters, const OptimizerConfig& config,
            const std::vector<std::string>& frozen = {},
            const std::vector<PartOptimizerConfig>& parts = {});

  /// Multiplies each gradient by the value of the first pattern that is found in its parameter's
  /// name, if there is one.
  void scale_gradients(const PatternValues& factors);
  /// One update of every parameter that is not frozen. One that the loss did not reach, so that it
  /// has no gradient, moves as by a gradient of zeros: by its momentum and its weight decay. `lr`
  /// is that of `config`; those of the parts keep their ratio to it.
  void step(double lr);
  /// Drops the gradients.
  void zero_grad();
  /// The gradients that are there; changing them in place changes the next step.
  std::vector<at::Tensor> gradients() const;

  /// Updates made so far.
  int64_t updates() const { return updates_; }
  /// The slots: "<parameter>.momentum" for sgd, "<parameter>.exp_avg" and ".exp_avg_sq" for adamw.
  /// Shares memory.
  TensorMap state() const;
  /// Copies what state() and updates() gave. Throws Error that names a missing, unexpected or
  /// ill-shaped tensor.
  void load_state(const TensorMap& state, int64_t updates);

 private:
  struct Entry {
    std::string name;
    at::Tensor parameter;
    std::vector<at::Tensor> slots;
    double weight_decay = 0.0;
    bool frozen = false;
  };
  /// What one update rule moves.
  struct Part {
    std::unique_ptr<UpdateRule> rule;
    double rate = 1.0;  ///< learning rate, as a factor of the optimizer's
    double l2 = 0.0;
    std::vector<Entry> entries;
    std::set<double> weight_decays;
  };

  void add_part(const OptimizerConfig& config, double rate, const Patterns& of,
                const std::vector<std::string>& frozen, NamedParameters& parameters);
  static std::vector<at::Tensor> prepared_gradients(const Part& part);
  void step_part(const Part& part, double lr) const;

  template <class Use>
  void for_entries(const Use& use) const {
    for (const Part& part : parts_) {
      for (const Entry& entry : part.entries) use(entry);
    }
  }

  std::vector<Part> parts_;
  int64_t updates_ = 0;
};

}  // namespace moesaic
