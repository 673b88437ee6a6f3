// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/nn/experts.h"
#include "moesaic/nn/shares_batch.h"

namespace moesaic::nn {

/// Does what Experts::forward() does, where the processes of a replica have equal parts of its
/// experts, in their order: rows of x go to the process that has their expert, are computed there
/// and come back. `own` routes the tokens of this process to all experts, `all` the tokens of the
/// whole batch; the processes' numbers of rows follow from it. Where it is null, each process knows
/// its own routing alone, and they exchange these numbers. Where a batch is not parted, both are
/// the same. Experts whose outputs lie side by side, see Sharing, get all tokens of the replica
/// instead, and their outputs come back. Embeddings are undefined in training.
ExpertsOutput forward_shared(Experts& experts, const at::Tensor& x, const Routing& own,
                             const Routing* all, const BatchShare& share,
                             const at::Generator& random);

}  // namespace moesaic::nn
