// SPDX-License-Identifier: Apache-2.0
// What the latent paper adds to the library's registries.
#include "moesaic/data/format.h"
#include "moesaic/models/family.h"
#include "parts.h"

namespace moesaic {

[[maybe_unused]] const bool kLatentRegistered =
    families().add(kLatentMoE, family_of<LatentMoE, LatentMoEConfig>(
                                   "mixture of two-layer networks with a linear router "
                                   "(latent paper, section 3.2)")) &&
    dataset_formats().add(
        "latent", generated_format(
                      "latent", "generated inputs and targets with latent clusters (latent paper)",
                      latent_inputs)) &&
    add_spherical_sgd("spherical_sgd",
                      "online steps of the first layers of two-layer experts, on unit spheres "
                      "(latent paper, phases I and III)") &&
    add_router_ascent(
        "router_ascent",
        "gradient ascent of the router of two-layer experts (latent paper, phase II)") &&
    add_ridge("ridge",
              "second layers of all two-layer experts by one ridge regression (latent paper, phase "
              "IV)") &&
    probes().add("specialisation",
                 {"alignments of experts' neurons with the tasks of the data's clusters",
                  specialisation_metrics, measure_specialisation}) &&
    probes().add("cluster_routing", {"separation of the means of the data's clusters by the router",
                                     cluster_routing_metrics, measure_cluster_routing});

}  // namespace moesaic
