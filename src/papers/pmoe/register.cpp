// SPDX-License-Identifier: Apache-2.0
// Adds the networks, data, phases and probes of the pMoE paper to the registries.
#include "built_in.h"
#include "moesaic/models/family.h"
#include "moesaic/papers/pmoe.h"

namespace moesaic {
namespace {

[[maybe_unused]] const bool kRegistered = [] {
  families().add(
      kPMoE, family_of<PMoE, PMoEConfig>("patch-level mixture of two-layer convolutional networks "
                                         "(pMoE paper, section 3.1)"));
  families().add(kWrnPMoE, family_of<WrnPMoE, WrnPMoEConfig>(
                               "wide residual network whose last convolution may be a "
                               "patch-level mixture (pMoE paper)"));
  dataset_formats().add("patch_patterns", patch_patterns_format());
  phase_kinds().add("patch_sgd", patch_sgd_kind());
  probes().add("routed", routed_probe());
  return true;
}();

}  // namespace
}  // namespace moesaic
