// SPDX-License-Identifier: Apache-2.0
// Adds the networks, data, phases and probes of the gated paper to the registries.
#include "moesaic/data/format.h"
#include "moesaic/models/family.h"
#include "moesaic/papers/gated.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/phase.h"

namespace moesaic {

// The files of this folder define these.
DatasetFormat gated_format();

/// Return the kinds: blocks of SGD steps on a loss, EM, and what follows the loss L4.
PhaseKind gated_sgd_kind();
PhaseKind gated_em_kind();
PhaseKind gated_signs_kind();

/// Returns the probe of recovery_error() (report/recovery.h): "error_A", "error_W", and
/// "recovered", 1 where the first is at most 0.05 and, unless all gates are 0, the second too.
Probe recovery_probe();

/// Returns the probe of a recurrent network's gates (Model::gates_over_time()): for each a table
/// "<name>_gate" of their means over the test data, by class and step.
Probe gates_probe();

namespace {

[[maybe_unused]] const bool kRegistered = [] {
  families().add(kGatedMoE, family_of<GatedMoE, GatedMoEConfig>(
                                "mixture of regressors with a softmax gate (gated paper)"));
  families().add(
      kGru, family_of<Gru, GruConfig>("GRU as a mixture of experts, which classifies images row "
                                      "by row (gated paper, section 2)"));
  dataset_formats().add("gated", gated_format());
  phase_kinds().add("gated_sgd", gated_sgd_kind());
  phase_kinds().add("gated_em", gated_em_kind());
  phase_kinds().add("gated_signs", gated_signs_kind());
  probes().add("recovery", recovery_probe());
  probes().add("gates", gates_probe());
  return true;
}();

}  // namespace
}  // namespace moesaic
