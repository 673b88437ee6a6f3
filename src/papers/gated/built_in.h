// SPDX-License-Identifier: Apache-2.0
// What register.cpp adds to the registries.
#pragma once

#include "moesaic/data/format.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/phase.h"

namespace moesaic {

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

}  // namespace moesaic
