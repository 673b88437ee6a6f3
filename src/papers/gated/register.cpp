// SPDX-License-Identifier: Apache-2.0
// Adds the networks, data, phases and probes of the gated paper to the registries.
#include "built_in.h"
#include "moesaic/models/family.h"
#include "moesaic/papers/gated.h"

namespace moesaic {
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
