// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/family.h"

#include "moesaic/models/vmoe/vmoe.h"

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
       {kE3, e3_family()}});
  return list;
}

}  // namespace moesaic
