// SPDX-License-Identifier: Apache-2.0
// What the pMoE paper adds to the library's registries.
#include "moesaic/data/format.h"
#include "moesaic/models/family.h"
#include "parts.h"

namespace moesaic {

[[maybe_unused]] const bool kPMoERegistered =
    families().add(kPMoE, family_of<PMoE, PMoEConfig>(
                              "patch-level mixture of two-layer convolutional networks "
                              "(pMoE paper, section 3.1)")) &&
    families().add(kWrnPMoE, family_of<WrnPMoE, WrnPMoEConfig>(
                                 "wide residual network whose last convolution may be a "
                                 "patch-level mixture (pMoE paper)")) &&
    dataset_formats().add(
        "patch_patterns",
        generated_format(
            "patch_patterns",
            "generated patches of the pMoE paper's theory, one of which determines the class",
            patch_inputs)) &&
    add_patch_sgd("patch_sgd",
                  "stochastic gradient descent of a patch-level mixture (pMoE paper, "
                  "algorithms 1 and 2)") &&
    probes().add("routed",
                 {"fraction of images, by class, whose class-deciding patch is routed to "
                  "the expert of the class (separate training), to the expert that gets it "
                  "most often, or to any expert",
                  routed_metrics, measure_routed});

}  // namespace moesaic
