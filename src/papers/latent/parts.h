// SPDX-License-Identifier: Apache-2.0
// What the phases of Algorithm 1 of the latent paper share, and what register.cpp names of the
// other files.
#pragma once

#include "moesaic/base/random.h"
#include "moesaic/nn/init.h"
#include "moesaic/ops/normals.h"
#include "moesaic/papers/latent.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/phase.h"
#include "spherical_sgd.h"

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
                          const SampleRng& ties, int64_t first);

/// Completes the plan of a phase that takes `samples` samples a step. Throws Error (usage) unless
/// the network is one layer of shallow experts, and the data so many inputs with one real-valued
/// target; also where 'trainable' and 'frozen' would keep a parameter from moving.
void plan_latent(PhasePlan& plan, const SettingLocations& locations, const Model& model,
                 const Dataset& data, int64_t samples);

/// A phase of such a network.
class LatentPhase : public OnlinePhase {
 protected:
  /// Has the network route by `routing` from now on.
  LatentPhase(const PhasePlan& plan, PhaseContext context, const std::string& routing,
              const std::string& end = "")
      : OnlinePhase(plan, std::move(context), end),
        layer_(*find_layer_of<nn::ShallowExperts>(*context_.model)),
        routing_(routing),
        ties_(context_.seed, stream_id("latent.ties")) {
    const nn::RouterOptions& options = layer_->options();
    layer_->router->set_options(
        nn::latent_router_options(options.width, options.num_experts, routing, options.rule.kept));
  }

  struct Samples {
    at::Tensor x_Sd, y_S;  ///< float32, on the CPU.
  };
  /// Returns samples from number `first` of the phase on.
  Samples samples(int64_t first, int64_t count) const {
    const DatasetInputs drawn = inputs(first, count);
    return {drawn.values_NCHW.flatten(1).contiguous(), drawn.targets_NK.flatten().contiguous()};
  }
  /// Routes samples that begin with number `first` of the phase by these rows of a router.
  RoutedBlock routed(const Samples& samples, int64_t first, const at::Tensor& router_Kd) const {
    return route_samples(samples.x_Sd, samples.y_S, router_Kd, routing_, ties_, offset_ + first);
  }

  nn::ShallowExpertsImpl& experts() const { return *layer_->experts->as<nn::ShallowExperts>(); }
  /// Returns a generator of this phase's own for a purpose.
  at::Generator generator(const char* purpose) const {
    return nn::make_generator(mix64(context_.seed ^ stream_id(purpose)));
  }

  nn::MoELayer layer_;

 private:
  std::string routing_;
  SampleRng ties_;
};

/// Warns of training data that the theorems do not cover.
void warn_of(const LatentClustersConfig& config, const DatasetInfo& info);
MakeInputs latent_inputs(const LatentClustersConfig& config, DatasetInfo& info);
extern AddPhaseKind add_spherical_sgd, add_router_ascent, add_ridge;
Probe::Metrics specialisation_metrics, cluster_routing_metrics;
Probe::Measure measure_specialisation, measure_cluster_routing;

}  // namespace moesaic
