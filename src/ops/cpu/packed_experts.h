// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/ops/grouped_mlp.h"

namespace moesaic::ops {

/// See pack_experts().
ExpertWeights pack_experts_cpu(const ExpertWeights& weights);

}  // namespace moesaic::ops
