// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/ops/routing.h"

namespace moesaic {

/// Returns n[k, m], the rows of expert m whose token is of cluster k: [clusters, K] int64.
/// cluster_T: [T] int64, values below `clusters`.
at::Tensor dispatch_counts(const Routing& routing, const at::Tensor& cluster_T, int64_t clusters);

/// Computes the dispatch entropy (clusters paper, eq. 6.1) of such counts: - sum_m n_m / n * sum_k
/// n[k, m] / n_m * ln(n[k, m] / n_m). The entropy is 0 if every expert gets at most one cluster and
/// ln(clusters) if the two are independent. Returns a float32 scalar; 0 without rows.
at::Tensor dispatch_entropy(const at::Tensor& counts_CK);

}  // namespace moesaic
