// SPDX-License-Identifier: Apache-2.0
// What the phases of Algorithm 1 of the latent paper share.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/nn/shallow_experts.h"
#include "moesaic/ops/normals.h"
#include "moesaic/ops/spherical_sgd.h"
#include "moesaic/train/online_phase.h"

namespace moesaic {

/// Samples that a router sends to experts, and the router's logits of those that exist.
struct RoutedBlock {
  RoutedSamples rows;
  at::Tensor logits_SK;
};

/// Routes as nn::latent_router_options() says. Ties of F_1 are broken by the random number of each
/// sample, of which `first` is the number of the first.
RoutedBlock route_samples(const at::Tensor& x_Sd, const at::Tensor& y_S,
                          const at::Tensor& router_Kd, const std::string& routing,
                          const SampleRandom& ties, int64_t first);

/// Completes the plan of a phase that takes `samples` samples a step. Throws Error (usage) unless
/// the network is one layer of shallow experts, and the data an endless stream of inputs with one
/// real-valued target; also where 'trains' and 'frozen' would keep a parameter from moving.
void plan_latent(PhasePlan& plan, const PhasePlaces& places, const Model& model,
                 const Dataset& data, int64_t samples);

/// A phase of such a network.
class LatentPhase : public OnlinePhase {
 protected:
  /// Has the network route by `routing` from now on.
  LatentPhase(const PhasePlan& plan, PhaseContext context, const std::string& routing,
              const std::string& end = "");

  struct Samples {
    at::Tensor x_Sd, y_S;  ///< float32, on the CPU.
  };
  /// Returns samples of the stream, from number `first` of the phase on.
  Samples samples(int64_t first, int64_t count) const;
  /// Routes samples that begin with number `first` of the phase by these rows of a router.
  RoutedBlock routed(const Samples& samples, int64_t first, const at::Tensor& router_Kd) const;

  nn::ShallowExpertsImpl& experts() const { return *layer_->experts->as<nn::ShallowExperts>(); }
  /// Returns a generator of this phase's own for a purpose.
  at::Generator generator(const char* purpose) const;

  nn::MoELayer layer_;

 private:
  std::string routing_;
  SampleRandom ties_;
  int64_t offset_;
};

}  // namespace moesaic
