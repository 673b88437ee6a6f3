// SPDX-License-Identifier: Apache-2.0
// Token-choice routing as plain loops over doubles, written from the definitions and not from the
// kernels.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "moesaic/ops/route.h"

namespace moesaic::testing {

/// weight[t][e]: what expert e's output is multiplied with for token t; 0 where it computes
/// nothing.
struct RouteReference {
  std::vector<std::vector<double>> weight;
  std::vector<std::vector<bool>> routed;
};

RouteReference route_reference(const at::Tensor& logits_TE, const TokenChoiceOptions& options);

}  // namespace moesaic::testing
