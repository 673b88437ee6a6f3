// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/routing_statistics.h"

#include <torch/torch.h>

#include "check.h"
#include "moesaic/base/error.h"

namespace moesaic {
namespace {

/// Returns - sum p ln p over the last dimension; 0 ln 0 = 0.
at::Tensor entropy_of(const at::Tensor& fractions) {
  return -at::xlogy(fractions, fractions).sum(-1);
}

/// Returns counts / sum of counts over a dimension; 0 / 0 = 0.
at::Tensor fractions_of(const at::Tensor& counts, int64_t dim) {
  const at::Tensor total = counts.sum(dim, /*keepdim=*/true).clamp_min(1);
  return counts.to(at::kDouble) / total.to(at::kDouble);
}

}  // namespace

at::Tensor dispatch_counts(const Routing& routing, const at::Tensor& cluster_T, int64_t clusters) {
  constexpr const char* kOp = "dispatch_counts";
  ops::check_shape(kOp, "cluster", cluster_T, {routing.num_tokens()});
  if (cluster_T.scalar_type() != at::kLong) {
    fail("{}: cluster must be int64, found {}", kOp, c10::toString(cluster_T.scalar_type()));
  }
  if (clusters < 1) fail("{}: clusters must be at least 1, found {}", kOp, clusters);
  if (cluster_T.is_cpu() && cluster_T.numel() > 0 &&
      (cluster_T.min().item<int64_t>() < 0 || cluster_T.max().item<int64_t>() >= clusters)) {
    fail("{}: cluster must be between 0 and {}", kOp, clusters - 1);
  }
  const int64_t columns = routing.num_experts() + 1;
  const at::Tensor counts = at::zeros({clusters * columns}, cluster_T.options());
  if (routing.num_tokens() == 0) return counts.view({clusters, columns}).narrow(1, 0, columns - 1);
  const at::Tensor cluster = cluster_T.index_select(0, routing.token);
  const at::Tensor cell = cluster * columns + row_experts(routing);
  return counts.index_add(0, cell, at::ones_like(cell))
      .view({clusters, columns})
      .narrow(1, 0, columns - 1);
}

at::Tensor dispatch_entropy(const at::Tensor& counts_CK) {
  const at::Tensor counts_KC = counts_CK.t();
  const at::Tensor of_expert_K = entropy_of(fractions_of(counts_KC, 1));
  return (fractions_of(counts_KC.sum(1), 0) * of_expert_K).sum().to(at::kFloat);
}

}  // namespace moesaic
