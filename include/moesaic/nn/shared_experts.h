// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/nn/experts.h"
#include "moesaic/nn/shares_batch.h"

namespace moesaic::nn {

/// Does what Experts::forward() does, where the processes of a replica have equal parts of its
/// experts, in their order: rows of x go to the process that has their expert, are computed there
/// and come back. `own` routes the tokens of this process to all experts, `all` the tokens of the
/// whole batch; the processes' numbers of rows follow from it, so that none are exchanged. Where a
/// batch is not parted, both are the same.
ExpertsOutput forward_shared(Experts& experts, const at::Tensor& x, const Routing& own,
                             const Routing& all, const BatchShare& share,
                             const at::Generator& random);

}  // namespace moesaic::nn
