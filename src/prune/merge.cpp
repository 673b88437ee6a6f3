// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/merge.h"

#include <torch/torch.h>

#include <algorithm>

namespace moesaic {
namespace {

/// Returns the cosines of the experts' mean outputs, [E, E]; 0 for those without one.
at::Tensor similarities(const PruneLayerPlan& layer) {
  if (!layer.means_Eo.defined() || layer.means_Eo.is_meta()) {
    return at::zeros({layer.num_experts, layer.num_experts}, at::kDouble);
  }
  const at::Tensor norm_E1 = layer.means_Eo.norm(2, {1}, /*keepdim=*/true);
  const at::Tensor unit_Eo = layer.means_Eo / norm_E1.masked_fill(norm_E1.eq(0), 1.0);
  return unit_Eo.mm(unit_Eo.t());
}

}  // namespace

MergePlan plan_merge(const MoEBlock& block, const PruneLayerPlan& layer) {
  const nn::MoELayer& old = block.layer;
  const int64_t each = layer.num_experts / block.num_ranked_groups();
  const at::Tensor cosine_EE = similarities(layer);
  const auto nearest = [&](int64_t expert) {
    int64_t best = -1;
    for (const int64_t kept : layer.kept) {
      if (kept == expert) return kept;
      if (kept / each != expert / each) continue;
      const bool is_nearer = best < 0 || cosine_EE[expert][kept].item<double>() >
                                             cosine_EE[expert][best].item<double>();
      if (is_nearer) best = kept;
    }
    return best;
  };
  MergePlan merging;
  for (int64_t expert = 0; expert < layer.num_experts; ++expert) {
    const auto place = static_cast<size_t>(expert);
    merging.into.push_back(nearest(old->merged_into.empty() ? expert : old->merged_into[place]));
  }
  const std::vector<int64_t> present = old->kept();
  const auto count = static_cast<int64_t>(present.size());
  const auto slot_of = [&](int64_t id) {
    return std::lower_bound(present.begin(), present.end(), id) - present.begin();
  };
  merging.weights_PP = at::zeros({count, count}, at::kDouble);
  for (int64_t slot = 0; slot < count; ++slot) {
    const int64_t id = present[static_cast<size_t>(slot)];
    const double rows = layer.rows_E.defined() ? layer.rows_E[id].item<double>() : 0.0;
    merging.weights_PP[slot_of(merging.into[static_cast<size_t>(id)])][slot] = rows;
  }
  for (int64_t slot = 0; slot < count; ++slot) {
    at::Tensor row = merging.weights_PP[slot];
    const auto sum = row.sum().item<double>();
    if (sum > 0.0) {
      row.div_(sum);
    } else {
      row[slot] = 1.0;
    }
  }
  return merging;
}

}  // namespace moesaic
