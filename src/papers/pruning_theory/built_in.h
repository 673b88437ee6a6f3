// SPDX-License-Identifier: Apache-2.0
// What register.cpp adds to the registries.
#pragma once

#include "moesaic/data/format.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/phase.h"

namespace moesaic {

DatasetFormat patterns_format();

/// Returns the kind of Algorithm 1.
PhaseKind pattern_sgd_kind();

/// Returns the probe of single neurons' products with the data's known directions, in networks of
/// one MoE layer: for weights "a" of several vectors an expert and directions "b" a table
/// "single_a_b_<g>" for each group of experts that pruning ranks apart, with a row for every neuron
/// of the expert with the largest router and of that with the smallest.
Probe neurons_probe();
Probe proficiency_probe();

}  // namespace moesaic
