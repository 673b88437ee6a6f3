// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moesaic/models/model.h"

namespace moesaic {

/// Returns for each expert the only cluster whose mean, of mean_Cd, has a positive product with its
/// row of the router; -1 where there is none, or several.
std::vector<int64_t> clusters_of_experts(const Model& model, const at::Tensor& mean_Cd);

}  // namespace moesaic
