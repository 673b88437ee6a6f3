// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/routing.h"

#include <torch/torch.h>

#include "check.h"
#include "moesaic/base/error.h"

namespace moesaic {

at::Tensor index_on(at::Device device, const std::vector<int64_t>& ids) {
  const at::TensorOptions options = at::device(device).dtype(at::kLong);
  std::vector<at::Tensor> runs = {at::empty({0}, options)};
  for (size_t first = 0, last = 0; first < ids.size(); first = last) {
    do ++last;
    while (last < ids.size() && ids[last] == ids[last - 1] + 1);
    runs.push_back(at::arange(ids[first], ids[last - 1] + 1, options));
  }
  return at::cat(runs);
}

Routing routing_to_one_expert(int64_t tokens, at::Device device) {
  const at::TensorOptions index = at::device(device).dtype(at::kInt);
  Routing routing;
  routing.offsets = at::zeros({2}, index);  // A copy from the host would hold a step up.
  routing.offsets.narrow(0, 1, 1).fill_(tokens);
  routing.token = at::arange(tokens, index);
  return routing;
}

Routing routing_of_rows(const Routing& routing) {
  return {.offsets = routing.offsets,
          .token = at::arange(routing.max_rows(), routing.token.options())};
}

at::Tensor row_experts(const Routing& routing) {
  const at::Tensor row = at::arange(routing.max_rows(), routing.offsets.options());
  // LibTorch knows no shape of searchsorted.
  if (row.is_meta()) return at::empty_like(row, row.options().dtype(at::kLong));
  return at::searchsorted(routing.offsets.slice(0, 1), row, /*out_int32=*/false, /*right=*/true);
}

namespace {

/// Returns the first rows of a buffer on the meta device, where no values tell the rows of a part
/// of its tokens or experts: it has its share of them.
Routing first_rows(const Routing& routing, int64_t rows) {
  Routing part = routing;
  part.token = routing.token.narrow(0, 0, rows);
  part.gate = routing.gate.narrow(0, 0, rows);
  part.token_row = routing.token_row.narrow(0, 0, rows);
  return part;
}

}  // namespace

Routing routing_of_tokens(const Routing& routing, int64_t first, int64_t count) {
  if (routing.token.is_meta()) {
    Routing part = first_rows(routing, routing.max_rows() * count / routing.num_tokens());
    part.token_offsets = routing.token_offsets.narrow(0, first, count + 1);
    part.choice = routing.choice.narrow(0, first, count);
    return part;
  }
  const at::Tensor row = at::arange(routing.max_rows(), routing.offsets.options());
  const at::Tensor taken = routing.token.ge(first) & routing.token.lt(first + count) &
                           row.lt(routing.offsets[routing.num_experts()]);
  const at::Tensor rows = taken.nonzero().squeeze(1);
  // Rows that are taken before each row of the whole, which is that row's new place.
  const at::Tensor before = at::constant_pad_nd(taken.cumsum(0, at::kInt), {1, 0});
  Routing part;
  part.offsets = before.index_select(0, routing.offsets.to(at::kLong));
  part.token = routing.token.index_select(0, rows) - static_cast<int32_t>(first);
  part.gate = routing.gate.index_select(0, rows);
  const at::Tensor entries = routing.token_offsets.narrow(0, first, count + 1);
  part.token_offsets = entries - entries[0];
  const at::Tensor old = routing.token_row.narrow(0, entries[0].item<int64_t>(), rows.size(0));
  part.token_row = before.index_select(0, old.to(at::kLong));
  part.choice = routing.choice.narrow(0, first, count);
  return part;
}

Routing routing_of_experts(const Routing& routing, int64_t first, int64_t count) {
  if (routing.token.is_meta()) {
    Routing part = first_rows(routing, routing.max_rows() * count / routing.num_experts());
    part.offsets = routing.offsets.narrow(0, first, count + 1);
    part.choice = at::empty({routing.num_tokens(), 0}, routing.choice.options());
    return part;
  }
  const at::Tensor offsets = routing.offsets.narrow(0, first, count + 1);
  const at::Tensor ends = offsets.to(at::kCPU);
  const int64_t begin = ends[0].item<int64_t>(), rows = ends[count].item<int64_t>() - begin;
  const at::Tensor entry = at::arange(routing.max_rows(), routing.offsets.options());
  const at::Tensor taken = routing.token_row.ge(begin) & routing.token_row.lt(begin + rows) &
                           entry.lt(routing.token_offsets[routing.num_tokens()]);
  const at::Tensor before = at::constant_pad_nd(taken.cumsum(0, at::kInt), {1, 0});
  Routing part;
  part.offsets = offsets - offsets[0];
  part.token = routing.token.narrow(0, begin, rows);
  part.gate = routing.gate.narrow(0, begin, rows);
  part.token_offsets = before.index_select(0, routing.token_offsets.to(at::kLong));
  part.token_row = routing.token_row.masked_select(taken) - static_cast<int32_t>(begin);
  part.choice = at::empty({routing.num_tokens(), 0}, routing.choice.options());
  return part;
}

at::Tensor combine_weights(const Routing& routing) {
  // Unused rows go to an extra column, so that their number need not be known on the host.
  const at::Tensor weights =
      at::zeros({routing.num_tokens(), routing.num_experts() + 1}, routing.gate.options());
  const at::Tensor token = routing.token.to(at::kLong);
  return weights.index_put({token, row_experts(routing)}, routing.gate)
      .narrow(1, 0, routing.num_experts());
}

Routing routing_to_merged(const Routing& routing, const std::vector<int64_t>& slots,
                          int64_t experts) {
  Routing merged = routing;
  if (routing.token.is_meta()) {
    merged.offsets = routing.offsets.narrow(0, 0, experts + 1);
    return merged;
  }
  const at::Tensor slot_E = index_on(routing.token.device(), slots);
  const auto by_slot = [&](const Routing& of_all) {
    const at::Tensor weights_TE = combine_weights(of_all);
    return weights_TE.new_zeros({routing.num_tokens(), experts}).index_add(1, slot_E, weights_TE);
  };
  Routing counted = routing;  // A gate may be 0.
  counted.gate = at::ones_like(routing.gate);
  const at::Tensor gates_KT = by_slot(routing).t();
  const at::Tensor is_routed_KT = by_slot(counted).t().gt(0).contiguous();
  const at::Tensor row_KT = is_routed_KT.flatten().cumsum(0, at::kInt).sub(1).view_as(is_routed_KT);
  const auto ends_of = [&](int64_t summed) {
    return at::constant_pad_nd(is_routed_KT.sum(summed).cumsum(0, at::kInt), {1, 0});
  };
  merged.offsets = ends_of(1);
  merged.token = is_routed_KT.nonzero().select(1, 1).to(at::kInt).contiguous();
  merged.gate = gates_KT.masked_select(is_routed_KT);
  merged.token_offsets = ends_of(0);
  merged.token_row = row_KT.t().masked_select(is_routed_KT.t());
  return merged;
}

namespace {

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
  const at::Tensor counts_KC = counts_CK.t(), p_KC = fractions_of(counts_KC, 1);
  const at::Tensor of_expert_K = -at::xlogy(p_KC, p_KC).sum(-1);  // 0 ln 0 = 0.
  return (fractions_of(counts_KC.sum(1), 0) * of_expert_K).sum().to(at::kFloat);
}

}  // namespace moesaic
