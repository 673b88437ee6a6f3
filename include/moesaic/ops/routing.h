// SPDX-License-Identifier: Apache-2.0
// The result of every router: a sparse matrix of experts x tokens. The letters of all shapes are
//   T tokens, E experts with a router row, K experts that are computed (K < E once experts are
//   pruned), k choices of a token, A rows of the buffer (a static bound; `offsets` says how many
//   are real), d width of a token, m hidden width of an expert.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace moesaic {

/// A routing in compressed sparse row form, with its transpose. Index tensors are int32. Row r of
/// expert e (offsets[e] <= r < offsets[e + 1]) is token `token[r]`, weighted with `gate[r]`. Rows
/// of one expert are in token order. Rows from offsets[K] on are unused: token and gate are 0.
///
/// The papers' routings, see RouteOptions, are
/// - token choice, softmax over the selected (pruning, eq. 3; pMoE, joint training):
///   Gate::softmax_selected,
/// - token choice, softmax over all (V-MoE): Gate::softmax_all, with `capacity` and `group_size`,
/// - switch, gate a probability or the noisy logit (clusters): `k = 1`, Gate::softmax_all or
///   Gate::logit, on logits with router_noise() added,
/// - among the experts that pruning left: `kept`, with PrunedSelection::zero (pruning paper, eqs. 5
///   and 6) or PrunedSelection::reroute (not in the paper),
/// - expert choice for each image (pruning, eq. 4; pMoE): `l`,
/// - expert choice with a capacity (V-MoE): `capacity`, Gate::softmax_all,
/// - every expert above a threshold (latent): `threshold`.
struct Routing {
  at::Tensor offsets;  ///< First row of each expert, [K + 1].
  at::Tensor token;    ///< Token of each row, [A].
  at::Tensor gate;  ///< Weight of each row, [A], of the logits' dtype, differentiable through them.
  at::Tensor token_offsets;  ///< First entry of each token in `token_row`, [T + 1].
  at::Tensor token_row;      ///< Rows that each token combines, [A], best choice first in token
                             ///< choice, else in the order of experts.
  at::Tensor choice;         ///< Experts that each token selected, [T, k], with drops, best first;
                             ///< [T, 0] if tokens do not rank experts.

  /// Returns the number of tokens, T.
  int64_t num_tokens() const { return token_offsets.size(0) - 1; }
  /// Returns the number of experts, E.
  int64_t num_experts() const { return offsets.size(0) - 1; }
  /// Returns the number of rows that there is memory for, A.
  int64_t max_rows() const { return token.size(0); }
};

/// Returns ascending ids, such as those of kept experts, as an index [K] int64. The index is
/// written on the device: a copy from the host would delay a step.
at::Tensor index_on(at::Device device, const std::vector<int64_t>& ids);

/// Returns what Experts::compute() needs of a routing of all tokens to one expert: offsets and
/// tokens.
Routing routing_to_one_expert(int64_t tokens, at::Device device);

/// Returns the routing of dispatched rows, each a token of its own: offsets and tokens.
Routing routing_of_rows(const Routing& routing);

/// Returns the expert that computes each row of the buffer: [A] int64; K for unused rows.
at::Tensor row_experts(const Routing& routing);

/// Returns the routing of tokens first..first + count - 1 alone, numbered from 0, to the same
/// experts; its buffer has as many rows as they have, which the host waits for; on the meta device
/// it has their share of the rows. The gates stay differentiable.
Routing routing_of_tokens(const Routing& routing, int64_t first, int64_t count);

/// Returns the routing of the same tokens to experts first..first + count - 1 alone, numbered from
/// 0; its buffer has as many rows as they have, which the host waits for; on the meta device it has
/// their share of the rows. The gates stay differentiable.
Routing routing_of_experts(const Routing& routing, int64_t first, int64_t count);

/// Returns the routing of the same tokens to `experts` experts, each of which takes the rows of all
/// of the given routing's that `slots` [E] sends to it. Of several rows of a token it gets one,
/// with the sum of their gates, which stay differentiable. The host waits for the number of rows;
/// on the meta device there are as many as before. `choice` stays.
Routing routing_to_merged(const Routing& routing, const std::vector<int64_t>& slots,
                          int64_t experts);

/// Returns the weight of each expert's output for each token: [T, K], 0 where not routed. Columns
/// of a pruned layer are its kept experts, in the order of their ids.
at::Tensor combine_weights(const Routing& routing);

/// Returns n[k, m], the rows of expert m whose token is of cluster k: [clusters, K] int64.
/// cluster_T: [T] int64, values below `clusters`.
at::Tensor dispatch_counts(const Routing& routing, const at::Tensor& cluster_T, int64_t clusters);

/// Computes the dispatch entropy (clusters paper, eq. 6.1) of such counts: - sum_m n_m / n * sum_k
/// n[k, m] / n_m * ln(n[k, m] / n_m). The entropy is 0 if every expert gets at most one cluster and
/// ln(clusters) if the two are independent. Returns a float32 scalar; 0 without rows.
at::Tensor dispatch_entropy(const at::Tensor& counts_CK);

}  // namespace moesaic
