// SPDX-License-Identifier: Apache-2.0
// Adaptive routing: a rule for the kernels of route_rule.h.
#pragma once

#include <cstdint>

#include "block.h"
#include "kept_experts.h"

namespace moesaic::ops::kernels {

/// Rule that takes all experts whose logit is at least a threshold, with gate 1; NaN gets gate NaN.
template <class Scalar>
struct ThresholdRule {
  const Scalar* logits;
  int64_t experts;
  KeptView kept;
  double threshold;

  MOESAIC_INLINE Scalar logit(int64_t token, int32_t slot) const {
    return logits[token * experts + kept.column(slot)];
  }
  MOESAIC_INLINE bool selects(int64_t token, int32_t slot) const {
    const Scalar at = logit(token, slot);
    return at != at || static_cast<double>(at) >= threshold;
  }
  MOESAIC_INLINE Scalar gate(int64_t token, int32_t slot) const {
    const Scalar at = logit(token, slot);
    return at != at ? at : Scalar(1);
  }
};

}  // namespace moesaic::ops::kernels
