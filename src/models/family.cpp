// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/family.h"

#include "moesaic/models/cluster_moe/cluster_moe.h"
#include "moesaic/models/gated_moe/gated_moe.h"
#include "moesaic/models/gru/gru.h"
#include "moesaic/models/image_moe/image_moe.h"
#include "moesaic/models/latent_moe/latent_moe.h"
#include "moesaic/models/pattern_moe/pattern_moe.h"
#include "moesaic/models/pmoe/pmoe.h"
#include "moesaic/models/vmoe/vmoe.h"
#include "moesaic/models/wrn_pmoe/wrn_pmoe.h"

namespace moesaic {
namespace {

/// Returns the family of E3, which has the settings of V-MoE.
Family e3_family() {
  Family family = family_of<VMoE, VMoEConfig>();
  family.listed = false;
  return family;
}

}  // namespace

Registry<Family>& families() {
  static Registry<Family> list("model", {{kVMoE, family_of<VMoE, VMoEConfig>()},
                                         {kE3, e3_family()},
                                         {kClusterMoE, family_of<ClusterMoE, ClusterMoEConfig>()},
                                         {kGatedMoE, family_of<GatedMoE, GatedMoEConfig>()},
                                         {kGru, family_of<Gru, GruConfig>()},
                                         {kImageMoE, family_of<ImageMoE, ImageMoEConfig>()},
                                         {kLatentMoE, family_of<LatentMoE, LatentMoEConfig>()},
                                         {kPatternMoE, family_of<PatternMoE, PatternMoEConfig>()},
                                         {kPMoE, family_of<PMoE, PMoEConfig>()},
                                         {kWrnPMoE, family_of<WrnPMoE, WrnPMoEConfig>()}});
  return list;
}

}  // namespace moesaic
