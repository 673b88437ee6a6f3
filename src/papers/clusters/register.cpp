// SPDX-License-Identifier: Apache-2.0
// What the clusters paper adds to the library's registries.
#include "moesaic/data/format.h"
#include "moesaic/models/family.h"
#include "moesaic/papers/clusters.h"

namespace moesaic {
namespace {

MakeInputs cluster_inputs(const ClusterMixtureConfig& config, DatasetInfo& info) {
  info.classes = {"-1", "+1"};
  info.groups = numbered("cluster ", config.num_clusters);
  const ClusterSignals signals = cluster_signals(config);
  info.directions = {{"signal", signals.v_Kd}, {"centre", signals.c_Kd}};
  return [config, signals, split = info.split](int64_t first, int64_t count) {
    return cluster_examples(config, signals, split, first, count);
  };
}

[[maybe_unused]] const bool kClustersRegistered =
    families().add(kClusterMoE, family_of<ClusterMoE, ClusterMoEConfig>(
                                    "mixture of two-layer convolutional networks over patches "
                                    "(clusters paper, section 3.2)")) &&
    families().add(kImageMoE, family_of<ImageMoE, ImageMoEConfig>(
                                  "mixture of convolutional networks that routes whole "
                                  "images (clusters paper, section 6.2)")) &&
    dataset_formats().add(
        "clusters",
        generated_format("clusters",
                         "generated data with cluster structure (clusters paper, definition 3.1)",
                         cluster_inputs));

}  // namespace
}  // namespace moesaic
