// SPDX-License-Identifier: Apache-2.0
// Adds the networks, data, phases and probes of the latent paper to the registries.
#include "latent.h"
#include "moesaic/models/family.h"
#include "moesaic/papers/latent.h"

namespace moesaic {
namespace {

[[maybe_unused]] const bool kRegistered = [] {
  families().add(kLatentMoE, family_of<LatentMoE, LatentMoEConfig>(
                                 "mixture of two-layer networks with a linear router "
                                 "(latent paper, section 3.2)"));
  dataset_formats().add("latent", latent_format());
  phase_kinds().add("spherical_sgd", spherical_sgd_kind());
  phase_kinds().add("router_ascent", router_ascent_kind());
  phase_kinds().add("ridge", ridge_kind());
  probes().add("specialisation", specialisation_probe());
  probes().add("cluster_routing", cluster_routing_probe());
  return true;
}();

}  // namespace
}  // namespace moesaic
