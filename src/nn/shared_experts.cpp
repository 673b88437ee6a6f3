// SPDX-License-Identifier: Apache-2.0
// What several processes do that share the experts of a layer.

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <numeric>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/nn/moe_layer.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/parallel/process_mesh.h"

namespace moesaic::nn {
namespace {

using Counts = std::vector<int64_t>;

/// Returns integers on the host.
Counts values_of(const at::Tensor& integers) {
  const at::Tensor list = integers.to(at::kCPU, at::kLong).contiguous();
  return {list.const_data_ptr<int64_t>(), list.const_data_ptr<int64_t>() + list.numel()};
}

/// Returns the rows of each expert, [E] int64.
at::Tensor rows_of_experts(const Routing& routing) {
  return routing.offsets.diff().to(at::kLong);
}

/// Returns the rows that each process of the group of experts sends to each expert, [K, E].
at::Tensor rows_by_sender(const Routing& all, const BatchShard& shard) {
  const ProcessGroup& group = shard.processes->expert_group();
  const int64_t experts = all.num_experts(), senders = group.size();
  if (!shard.is_sharded) return rows_of_experts(all).expand({senders, -1});
  const at::Tensor expert = row_experts(all);
  const int64_t tokens = all.num_tokens() / shard.processes->size();
  const int64_t first = shard.processes->rank() - group.rank();
  const at::Tensor sender = all.token.to(at::kLong).div(tokens, "floor") - first;
  const at::Tensor used = expert.lt(experts) & sender.ge(0) & sender.lt(senders);
  return (sender * experts + expert)
      .masked_select(used)
      .bincount({}, senders * experts)
      .view({senders, experts});
}

/// Returns the routing of received rows, each a token, to the experts of this process, without
/// gates and choices. The rows are ordered by sender, then by expert.
Routing routing_of_received(const at::Tensor& rows_KE, int64_t count) {
  const int64_t senders = rows_KE.size(0), experts = rows_KE.size(1);
  at::Tensor order = at::empty({count}, rows_KE.options());
  if (!order.is_meta()) {
    const at::Tensor expert = at::arange(experts, rows_KE.options())
                                  .repeat({senders})
                                  .repeat_interleave(rows_KE.reshape({-1}));
    order = expert.argsort(/*stable=*/true, 0);
  }
  Routing received;
  received.offsets = at::constant_pad_nd(rows_KE.sum(0).cumsum(0, at::kInt), {1, 0});
  received.token = order.to(at::kInt);
  received.token_offsets = at::arange(count + 1, received.offsets.options());
  const at::Tensor step = at::arange(count, order.options());
  received.token_row = at::empty_like(order).scatter_(0, order, step).to(at::kInt);
  return received;
}

/// Returns the type in which autocast makes products of such a tensor, if it does.
std::optional<at::ScalarType> autocast_type(const at::Tensor& like) {
  // The meta device has no autocast of its own.
  const c10::DeviceType device = like.is_meta() ? at::kCPU : like.device().type();
  if (like.scalar_type() == at::kDouble || !at::autocast::is_autocast_enabled(device)) return {};
  return at::autocast::get_autocast_dtype(device);
}

/// All processes of the group compute their experts on the tokens of all of them.
ExpertsOutput forward_all_gather(Experts& experts, const at::Tensor& x_Td, const Routing& all,
                                 const BatchShard& shard, const at::Generator& random) {
  const std::shared_ptr<const ProcessGroup> group(shard.processes,
                                                  &shard.processes->expert_group());
  const int64_t tokens = x_Td.size(0), members = group->size();
  const std::vector<int64_t> equal(static_cast<size_t>(members), tokens);
  Routing routing = all;
  at::Tensor x = x_Td;
  if (shard.is_sharded) {
    x = all_to_all_rows(x.repeat({members, 1}), equal, equal, group);
    const int64_t first = shard.processes->rank() - group->rank();
    routing = routing_of_tokens(all, first * tokens, members * tokens);
  }
  routing =
      routing_of_experts(routing, group->rank() * experts.num_experts(), experts.num_experts());
  at::Tensor y = mixture(experts, x, routing, random).y_To;
  if (!shard.is_sharded) y = y.repeat({members, 1});
  const at::Tensor back = all_to_all_rows(y, equal, equal, group);
  return {back.view({members, tokens, back.size(1)}).transpose(0, 1).flatten(1), {}};
}

/// Rows of x go to the processes of the group that have their experts, and their outputs come back.
ExpertsOutput forward_all_to_all(Experts& experts, const at::Tensor& x, const RoutingRecord& record,
                                 const BatchShard& shard, const at::Generator& random) {
  const Routing own = record.local_rows(record.routing);
  const std::shared_ptr<const ProcessGroup> group(shard.processes,
                                                  &shard.processes->expert_group());
  const int64_t each = experts.num_experts();
  const bool values = !x.is_meta();
  // Where a record is of this process alone, the others do not know its rows.
  const at::Tensor rows_KE =
      record.is_local ? group->all_gather(rows_of_experts(own).unsqueeze(0), Traffic::row_counts)
      : values        ? rows_by_sender(record.routing, shard)
                      : rows_of_experts(own).expand({group->size(), -1});
  const at::Tensor of_this = rows_KE.narrow(1, group->rank() * each, each);
  Counts even;  // On the meta device no values tell how many rows it really is.
  for (int64_t i = 1, size = group->size(); i <= size; ++i) {
    even.push_back((own.max_rows() + size - i) / size);
  }
  const Counts send =
      values ? values_of(rows_KE[group->rank()].reshape({group->size(), each}).sum(1)) : even;
  const Counts receive = values ? values_of(of_this.sum(1)) : even;

  const at::Tensor rows = dispatch(x.flatten(1), own);
  // Products round their inputs in any case; what travels is rounded before.
  const std::optional<at::ScalarType> narrow = autocast_type(rows);
  const at::Tensor inputs =
      all_to_all_rows(narrow ? rows.to(*narrow) : rows, send, receive, group).to(x.scalar_type());
  const Routing received = routing_of_received(of_this, inputs.size(0));
  const ExpertRows computed =
      expert_rows(experts, inputs.unflatten(1, x.sizes().slice(1)), received, random);
  const at::Tensor row_of_received = received.token_row.to(at::kLong);
  const auto returned = [&](const at::Tensor& made) {
    at::Tensor back = made.index_select(0, row_of_received);
    back = all_to_all_rows(narrow ? back.to(*narrow) : back, receive, send, group)
               .to(made.scalar_type());
    const int64_t unused = own.max_rows() - back.size(0);
    return unused == 0 ? back : at::constant_pad_nd(back, {0, 0, 0, unused});
  };
  ExpertRows rows_back{.outputs = returned(computed.outputs)};
  // In training nothing reads embeddings.
  const bool wanted = computed.embeddings.defined() && !experts.is_training();
  if (wanted) rows_back.embeddings = returned(computed.embeddings);
  return combine_rows(rows_back, own);
}

}  // namespace

ExpertsOutput MoELayerImpl::shared_mixture(const at::Tensor& x, const RoutingRecord& record,
                                           const at::Generator& random) const {
  const BatchShard shard{experts->mesh(), record.is_local || record.process_group,
                         /*is_expert_parallel=*/true};
  set_batch_shard(*experts, shard);
  return experts->needs_whole_batch()
             ? forward_all_gather(*experts, x, record.routing, shard, random)
             : forward_all_to_all(*experts, x, record, shard, random);
}

void Experts::check_shards(int64_t processes) const {
  if (processes == 1) return;
  if (expert_parallel() == ExpertParallel::none) {
    fail_usage(
        "parallel.expert_parallel_size: the experts of this network cannot be divided among "
        "processes; choose parallel.expert_parallel_size=1");
  }
  if (num_experts() % processes != 0) {
    fail_usage(
        "parallel.expert_parallel_size: {1} experts cannot be divided equally among {0} processes; "
        "choose {2}",
        processes, num_experts(), nearest_divisor(num_experts(), processes));
  }
}

void Experts::shard(const std::shared_ptr<const ProcessMesh>& processes) {
  const ProcessGroup& group = processes->expert_group();
  check_shards(group.size());
  if (group.size() == 1) return;
  std::vector<int64_t> slots(static_cast<size_t>(num_experts() / group.size()));
  std::iota(slots.begin(), slots.end(), group.rank() * static_cast<int64_t>(slots.size()));
  keep_local(slots);
  mesh_ = processes;
}

void Experts::unshard() {
  if (mesh_) gather(std::exchange(mesh_, nullptr)->expert_group());
}

void Experts::gather(const ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors_of(*this)) {
    replace_value(tensor, group.all_gather(tensor.detach(), Traffic::other));
  }
}

}  // namespace moesaic::nn
