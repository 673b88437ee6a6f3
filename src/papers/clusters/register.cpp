// SPDX-License-Identifier: Apache-2.0
// Adds the networks, data, phases and probes of the clusters paper to the registries.
#include "moesaic/data/format.h"
#include "moesaic/models/family.h"
#include "moesaic/papers/clusters.h"

namespace moesaic {

// The files of this folder define these.
DatasetFormat clusters_format();

namespace {

[[maybe_unused]] const bool kRegistered = [] {
  families().add(kClusterMoE, family_of<ClusterMoE, ClusterMoEConfig>(
                                  "mixture of two-layer convolutional networks over patches "
                                  "(clusters paper, section 3.2)"));
  families().add(kImageMoE, family_of<ImageMoE, ImageMoEConfig>(
                                "mixture of convolutional networks that routes whole "
                                "images (clusters paper, section 6.2)"));
  dataset_formats().add("clusters", clusters_format());
  return true;
}();

}  // namespace
}  // namespace moesaic
