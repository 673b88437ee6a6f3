// SPDX-License-Identifier: Apache-2.0
// Adds the networks, data, phases and probes of the pMoE paper to the registries.
#include "moesaic/data/format.h"
#include "moesaic/models/family.h"
#include "moesaic/papers/pmoe.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/phase.h"

namespace moesaic {

// The files of this folder define these.
DatasetFormat patch_patterns_format();

/// Returns the kind of Algorithms 1 and 2.
PhaseKind patch_sgd_kind();

/// Returns the probe of where routers send the patch that decides the class, whose place is the
/// group of an example: for class c, from 1, "routed_class_c", the percentage of its test examples
/// whose patch is sent to the expert that gets it most often; "largest_gate_class_c", where it has
/// the largest gate of the expert in which it has that most often, unless all gates are 1; and
/// "routed_by_any_class_c".
Probe routed_probe();

namespace {

[[maybe_unused]] const bool kRegistered = [] {
  families().add(
      kPMoE, family_of<PMoE, PMoEConfig>("patch-level mixture of two-layer convolutional networks "
                                         "(pMoE paper, section 3.1)"));
  families().add(kWrnPMoE, family_of<WrnPMoE, WrnPMoEConfig>(
                               "wide residual network whose last convolution may be a "
                               "patch-level mixture (pMoE paper)"));
  dataset_formats().add("patch_patterns", patch_patterns_format());
  phase_kinds().add("patch_sgd", patch_sgd_kind());
  probes().add("routed", routed_probe());
  return true;
}();

}  // namespace
}  // namespace moesaic
