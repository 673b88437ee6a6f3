// SPDX-License-Identifier: Apache-2.0
// What register.cpp names of the other files.
#pragma once

#include "moesaic/papers/gated.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/phase.h"

namespace moesaic {

MakeInputs gated_inputs(const GatedMixtureConfig& config, DatasetInfo& info);
extern AddPhaseKind add_gated_sgd, add_gated_em, add_gated_signs;
Probe::Metrics recovery_metrics, distance_metrics, gates_metrics;
Probe::Measure measure_recovery, measure_distance, measure_gates;

}  // namespace moesaic
