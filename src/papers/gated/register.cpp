// SPDX-License-Identifier: Apache-2.0
// What the gated paper adds to the library's registries.
#include "moesaic/data/format.h"
#include "moesaic/models/family.h"
#include "parts.h"

namespace moesaic {

[[maybe_unused]] const bool kGatedRegistered =
    families().add(kGatedMoE, family_of<GatedMoE, GatedMoEConfig>(
                                  "mixture of regressors with a softmax gate (gated paper)")) &&
    families().add(
        kGru, family_of<Gru, GruConfig>(
                  "gated recurrent unit (GRU) as a mixture of experts, which classifies images row "
                  "by row (gated paper, section 2)")) &&
    dataset_formats().add(
        "gated",
        generated_format("gated",
                         "generated inputs and outputs of a gated mixture (gated paper, section 4)",
                         gated_inputs)) &&
    add_gated_sgd("gated_sgd",
                  "stochastic gradient descent of a gated mixture on fresh batches by the l4, "
                  "l_log or squared loss") &&
    add_gated_em("gated_em",
                 "expectation-maximisation of a gated mixture on a fixed set of samples") &&
    add_gated_signs("gated_signs",
                    "one step from the minimisers of the l4 loss to the regressors of a gated "
                    "mixture, with their signs") &&
    probes().add("recovery",
                 {"errors of a gated mixture's regressors and gates against those of its data",
                  recovery_metrics, measure_recovery}) &&
    probes().add("mixture_distance",
                 {"distances of a gated mixture's regressors and gates from its data's",
                  distance_metrics, measure_distance}) &&
    probes().add("gates", {"gates of a recurrent network at each step, by class", gates_metrics,
                           measure_gates});

}  // namespace moesaic
