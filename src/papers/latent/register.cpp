// SPDX-License-Identifier: Apache-2.0
// Adds the networks, data, phases and probes of the latent paper to the registries.
#include "moesaic/data/format.h"
#include "moesaic/models/family.h"
#include "moesaic/papers/latent.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/phase.h"

namespace moesaic {

// The files of this folder define these.
DatasetFormat latent_format();

/// Return the kinds of Algorithm 1's phases: blocks of online steps of the first layers (phases I
/// and III), ascent of the router (II), ridge regression of the second layers (IV).
PhaseKind spherical_sgd_kind();
PhaseKind router_ascent_kind();
PhaseKind ridge_kind();

/// Returns the probe of the largest |alignment| of each expert's neurons with the data's directions
/// "local" and "global", "max_<task>" in the mean over experts, of those that a router gives to one
/// cluster "max_own" and "max_other"; "share_<task>" of the neurons above 0.5; "experts_<c>" whose
/// largest alignment with a local task is with c's; and tables of all that.
Probe specialisation_probe();

/// Returns the probe of the experts that a router gives to one cluster alone, by the data's
/// directions "mean": "routed", "covered", and "misrouted" beside what the overlap of the nearest
/// clusters costs the best rule.
Probe cluster_routing_probe();

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
