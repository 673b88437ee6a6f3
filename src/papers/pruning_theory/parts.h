// SPDX-License-Identifier: Apache-2.0
// What register.cpp names of the other files.
#pragma once

#include "moesaic/papers/pruning_theory.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/phase.h"

namespace moesaic {

MakeInputs pattern_inputs(const PatternTokensConfig& config, DatasetInfo& info);
extern AddPhaseKind add_pattern_sgd;
Probe::Metrics lemmas_metrics, norms_metrics, neurons_metrics, proficiency_metrics;
Probe::Measure measure_lemmas, measure_norms, measure_neurons, measure_proficiency;

}  // namespace moesaic
