// SPDX-License-Identifier: Apache-2.0
// What register.cpp adds to the registries.
#pragma once

#include "moesaic/data/format.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/phase.h"

namespace moesaic {

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

}  // namespace moesaic
