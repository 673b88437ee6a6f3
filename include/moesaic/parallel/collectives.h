// SPDX-License-Identifier: Apache-2.0
// Collectives that gradients flow through. As in c10d, each process has a loss of its own, and the
// gradient of all their sum flows back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "moesaic/parallel/group.h"

namespace moesaic {

/// Returns the rows of all processes by rank, [W N, ...] of x [N, ...].
at::Tensor gather_rows(const at::Tensor& x, const std::shared_ptr<const Group>& group);

/// Returns the sum of x over all processes.
at::Tensor sum_over(const at::Tensor& x, const std::shared_ptr<const Group>& group,
                    Traffic traffic);

/// Sends rows of x and returns those received, see Group::all_to_all().
at::Tensor exchange_rows(const at::Tensor& x, const std::vector<int64_t>& send,
                         const std::vector<int64_t>& receive,
                         const std::shared_ptr<const Group>& group);

}  // namespace moesaic
