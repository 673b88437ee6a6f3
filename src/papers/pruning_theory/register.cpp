// SPDX-License-Identifier: Apache-2.0
// Adds the networks, data, phases and probes of the pruning paper's theory to the registries.
#include "built_in.h"
#include "moesaic/models/family.h"
#include "moesaic/papers/pruning_theory.h"

namespace moesaic {
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
