// SPDX-License-Identifier: Apache-2.0
// What register.cpp names of the other files.
#pragma once

#include "moesaic/papers/pmoe.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/phase.h"

namespace moesaic {

MakeInputs patch_inputs(const PatchPatternsConfig& config, DatasetInfo& info);
extern AddPhaseKind add_patch_sgd;
Probe::Metrics routed_metrics;
Probe::Measure measure_routed;

}  // namespace moesaic
