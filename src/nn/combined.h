// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/nn/experts.h"

namespace moesaic::nn {

/// Returns what tokens get of the rows of a routing: outputs with their gates, embeddings without.
ExpertsOutput combined(const ExpertRows& rows, const Routing& routing);

}  // namespace moesaic::nn
