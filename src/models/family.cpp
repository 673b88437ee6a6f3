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
  auto family = family_of<VMoE, VMoEConfig>(
      "V-MoE as an ensemble in one network, with experts of its own for each member (E3)");
  family.listed = false;
  return family;
}

}  // namespace

Registry<Family>& families() {
  static Registry<Family> list(
      "model",
      {{kVMoE,
        family_of<VMoE, VMoEConfig>(
            "vision transformer with experts in place of some MLPs (V-MoE), or without any (ViT)")},
       {kE3, e3_family()},
       {kClusterMoE,
        family_of<ClusterMoE, ClusterMoEConfig>("mixture of two-layer convolutional networks over "
                                                "patches (clusters paper, section 3.2)")},
       {kGatedMoE, family_of<GatedMoE, GatedMoEConfig>(
                       "mixture of regressors with a softmax gate (gated paper)")},
       {kGru, family_of<Gru, GruConfig>("GRU as a mixture of experts, which classifies images row "
                                        "by row (gated paper, section 2)")},
       {kImageMoE,
        family_of<ImageMoE, ImageMoEConfig>("mixture of convolutional networks that routes whole "
                                            "images (clusters paper, section 6.2)")},
       {kLatentMoE,
        family_of<LatentMoE, LatentMoEConfig>(
            "mixture of two-layer networks with a linear router (latent paper, section 3.2)")},
       {kPatternMoE,
        family_of<PatternMoE, PatternMoEConfig>(
            "one layer of expert choice on patterns (pruning paper's theory, section 4.2)")},
       {kPMoE,
        family_of<PMoE, PMoEConfig>(
            "patch-level mixture of two-layer convolutional networks (pMoE paper, section 3.1)")},
       {kWrnPMoE, family_of<WrnPMoE, WrnPMoEConfig>("wide residual network whose last convolution "
                                                    "may be a patch-level mixture (pMoE paper)")}});
  return list;
}

}  // namespace moesaic
