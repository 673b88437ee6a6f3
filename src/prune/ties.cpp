// SPDX-License-Identifier: Apache-2.0
#include "ties.h"

#include <algorithm>

#include "moesaic/base/log.h"
#include "moesaic/prune/criteria.h"

namespace moesaic {

void warn_of_ties(const PrunePlan& plan) {
  // A plan's file may name any criterion.
  const auto criterion = std::ranges::find(criteria(), plan.criterion, &Criterion::name);
  const bool compares = criterion != criteria().end() && criterion->needs_pretrained;
  for (const PruneLayerPlan& layer : plan.layers) {
    const bool whole = static_cast<int64_t>(layer.kept.size()) == layer.num_experts;
    if (whole || layer.scores.empty()) continue;
    const int64_t each = layer.num_experts / layer.num_groups;
    for (int64_t first = 0; first < layer.num_experts; first += each) {
      const auto begin = layer.scores.begin() + first;
      const auto [min, max] = std::minmax_element(begin, begin + each);
      if (*min < *max) continue;
      log_warning("prune: block {}: {} gives every expert {}, so the first ones are kept{}",
                  layer.block, plan.criterion, *min,
                  compares ? "; check that the pretrained and the fine-tuned network differ" : "");
      break;
    }
  }
}

}  // namespace moesaic
