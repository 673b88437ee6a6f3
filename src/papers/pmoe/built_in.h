// SPDX-License-Identifier: Apache-2.0
// What register.cpp adds to the registries.
#pragma once

#include "moesaic/data/format.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/phase.h"

namespace moesaic {

DatasetFormat patch_patterns_format();

/// Returns the kind of Algorithms 1 and 2.
PhaseKind patch_sgd_kind();

/// Returns the probe of where routers send the patch that decides the class, whose place is the
/// group of an example: for class c, from 1, "routed_class_c", the percentage of its test examples
/// whose patch is sent to the expert that gets it most often; "largest_gate_class_c", where it has
/// the largest gate of the expert in which it has that most often, unless all gates are 1; and
/// "routed_by_any_class_c".
Probe routed_probe();

}  // namespace moesaic
