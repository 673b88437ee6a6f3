// SPDX-License-Identifier: Apache-2.0
// Adds the networks, data, phases and probes of the pruning paper's theory to the registries.
#include "moesaic/data/format.h"
#include "moesaic/models/family.h"
#include "moesaic/papers/pruning_theory.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/phase.h"

namespace moesaic {

// The files of this folder define these.
DatasetFormat patterns_format();

/// Returns the kind of Algorithm 1.
PhaseKind pattern_sgd_kind();

/// Returns the probe of single neurons' products with the data's known directions, in networks of
/// one MoE layer: for weights "a" of several vectors an expert and directions "b" a table
/// "single_a_b_<g>" for each group of experts that pruning ranks apart, with a row for every neuron
/// of the expert with the largest router and of that with the smallest.
Probe neurons_probe();
Probe proficiency_probe();

namespace {

[[maybe_unused]] const bool kRegistered = [] {
  families().add(kPatternMoE, family_of<PatternMoE, PatternMoEConfig>(
                                  "one layer of expert choice on patterns (pruning paper's "
                                  "theory, section 4.2)"));
  dataset_formats().add("patterns", patterns_format());
  phase_kinds().add("pattern_sgd", pattern_sgd_kind());
  probes().add("neurons", neurons_probe());
  probes().add("proficiency", proficiency_probe());
  return true;
}();

}  // namespace
}  // namespace moesaic
