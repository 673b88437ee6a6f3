// SPDX-License-Identifier: Apache-2.0
// What phases share that make their steps by formulas on samples in order, apart from optimizers
// and loaders.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/nn/moe_layer.h"
#include "moesaic/train/phase.h"

namespace moesaic {

/// A phase of plan.steps steps that may end before. Its state are the number of steps made and, by
/// a name of the phase's, whether it has met what ends it.
class OnlinePhase : public Phase {
 public:
  bool done() const override { return made_ >= plan_.steps || met_; }
  PhaseState state() const override;
  void load(const PhaseState& state) override;

 protected:
  OnlinePhase(const PhasePlan& plan, PhaseContext context, std::string end = "")
      : plan_(plan), context_(std::move(context)), end_(std::move(end)) {}

  /// Returns the advice to lower a setting of the phase.
  std::string lower(const std::string& setting, double now) const;
  /// Throws Diverged where the loss or a weight is not finite.
  static void check_finite(double loss, const std::vector<at::Tensor>& weights);

  PhasePlan plan_;
  PhaseContext context_;
  int64_t made_ = 0;
  bool met_ = false;

 private:
  std::string end_;  ///< Name of `met_` in the state; empty: nothing ends the phase before.
};

/// Completes a plan: so many samples a step of data of so many samples.
void plan_steps(PhasePlan& plan, int64_t samples, int64_t batch);

/// Throws Error (usage), with the reason, where 'trains' and 'frozen' would keep a parameter from
/// moving.
void check_moves_all(const PhasePlan& plan, const PhasePlaces& places, const Model& model,
                     const std::string& reason);

/// Returns the only MoE layer of a network if its experts are of the class, or nothing.
template <class Experts>
std::optional<nn::MoELayer> find_layer_of(const Model& model) {
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  if (blocks.size() != 1 || blocks[0].layer->experts->as<Experts>() == nullptr) return {};
  return blocks[0].layer;
}

/// Returns a contiguous float32 copy on the CPU.
at::Tensor host_copy(const at::Tensor& tensor);

/// Returns a copy of the router's rows whose experts exist, [K, d] float32 on the CPU.
at::Tensor router_rows(const nn::MoELayer& layer);
/// Writes those rows.
void set_router_rows(const nn::MoELayer& layer, const at::Tensor& router_Kd);

/// Returns a kind whose phases are of a class; what is left to set are functions beside its plan.
template <class Made, class Config>
PhaseKind kind_of_phase(const std::string& name, const Config& defaults, std::string meaning,
                        decltype(PhaseKind::plan) plan) {
  return {.settings = Choice(name, defaults),
          .meaning = std::move(meaning),
          .plan = std::move(plan),
          .make = [](const PhasePlan& plan, PhaseContext context) -> std::unique_ptr<Phase> {
            return std::make_unique<Made>(plan, std::move(context));
          }};
}

}  // namespace moesaic
