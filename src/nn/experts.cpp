// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/experts.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <numeric>

#include "moesaic/base/suggestions.h"
#include "moesaic/nn/router.h"
#include "moesaic/nn/script.h"
#include "moesaic/ops/combine.h"
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

/// Returns the row offsets of the experts; on the meta device those of a uniform load.
Counts row_offsets(const Routing& routing) {
  if (!routing.offsets.is_meta()) return values_of(routing.offsets);
  const int64_t experts = routing.num_experts();
  Counts offsets;
  for (int64_t e = 0; e <= experts; ++e) offsets.push_back(routing.max_rows() * e / experts);
  return offsets;
}

/// Concatenates the experts' rows, followed by zeros for rows without an expert.
at::Tensor stacked(std::vector<at::Tensor> parts, int64_t unused) {
  if (parts.empty()) return {};
  if (unused > 0) {
    parts.push_back(at::zeros({unused, parts.front().size(1)}, parts.front().options()));
  }
  return at::cat(parts);
}

/// Returns what tokens get of the rows of a routing: outputs with their gates, embeddings without.
ExpertsOutput combined(const ExpertRows& rows, const Routing& routing) {
  ExpertsOutput out;
  out.y_To = combine(rows.outputs, routing);
  if (rows.embeddings.defined()) {
    Routing without_gates = routing;
    without_gates.gate = at::ones_like(routing.gate);
    out.embedding_Td = combine(rows.embeddings, without_gates);
  }
  return out;
}

}  // namespace

at::Tensor read_parameter(const at::Tensor& parameter) {
  return parameter;
}

double neuron_magnitude(const ExpertMatrices& expert) {
  const torch::NoGradGuard no_grad;
  double sum = 0.0;
  int64_t neurons = 0;
  for (const at::Tensor& matrix : expert.hidden) {
    sum += matrix.norm(2, {1}, /*keepdim=*/false, at::kDouble).sum().item<double>();
    neurons += matrix.size(0);
  }
  return sum / static_cast<double>(neurons);
}

ExpertsOutput Experts::forward(const at::Tensor& x, const Routing& routing,
                               const at::Generator& random) {
  return combined(compute(x, routing, random), routing);
}

ExpertRows for_each_expert(
    const at::Tensor& rows, const Routing& routing,
    const std::function<ExpertRows(int64_t slot, const at::Tensor& own)>& compute) {
  const Counts offsets = row_offsets(routing);
  std::vector<at::Tensor> outputs, embeddings;
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    const ExpertRows own =
        compute(static_cast<int64_t>(e), rows.slice(0, offsets[e], offsets[e + 1]));
    if (own.outputs.defined()) outputs.push_back(own.outputs);
    if (own.embeddings.defined()) embeddings.push_back(own.embeddings);
  }
  const int64_t unused = rows.size(0) - offsets.back();
  return {stacked(std::move(outputs), unused), stacked(std::move(embeddings), unused)};
}

std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  return tensors;
}

at::Tensor average_experts(const at::Tensor& stacked, const at::Tensor& weights_KK) {
  const at::Tensor values = stacked.detach().to(at::kDouble);
  return weights_KK.to(values.options())
      .mm(values.reshape({values.size(0), -1}))
      .view(values.sizes())
      .to(stacked.scalar_type());
}

void replace_value(at::Tensor tensor, const at::Tensor& value) {
  tensor.mutable_grad() = at::Tensor();
  tensor.set_data(value);
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

bool Experts::needs_whole_batch() const {
  return mesh_ && expert_parallel() == ExpertParallel::all_gather;
}

void Experts::gather(const ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors_of(*this)) {
    replace_value(tensor, group.all_gather(tensor.detach(), Traffic::other));
  }
}

void Experts::keep(const std::vector<int64_t>& slots) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors_of(*this)) {
    // LibTorch's index_select() has no meta kernel.
    replace_value(tensor, at::index(tensor, {index_on(tensor.device(), slots)}));
  }
}

void Experts::average(const at::Tensor& weights_KK) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors_of(*this)) {
    replace_value(tensor, average_experts(tensor, weights_KK));
  }
}

void Experts::use_int8() {
  fail_usage("precision int8 is for experts that are MLPs; leave it out");
}

ExpertsScript Experts::script_source() const {
  fail("torchscript: these experts have no such form; {}", script::kFormatHint);
}

namespace {

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

/// Returns how many of `rows` rows go to each process where experts have as many. On the meta
/// device no values tell how many it really is.
Counts even_counts(int64_t rows, int64_t processes) {
  Counts counts;
  for (int64_t i = 0; i < processes; ++i) {
    counts.push_back(rows / processes + (i < rows % processes ? 1 : 0));
  }
  return counts;
}

/// Where received rows, ordered by sender and then by expert, belong.
struct Received {
  Routing routing;  ///< Of the rows, as tokens, to the experts of this process; gates are 1.
  at::Tensor back;  ///< Row of the experts' outputs of each received row.
};

Received routing_of_received(const at::Tensor& rows_KE, int64_t count,
                             const at::Tensor& gate_like) {
  const int64_t senders = rows_KE.size(0), experts = rows_KE.size(1);
  at::Tensor order = at::empty({count}, rows_KE.options());
  if (!order.is_meta()) {
    const at::Tensor expert = at::arange(experts, rows_KE.options())
                                  .repeat({senders})
                                  .repeat_interleave(rows_KE.reshape({-1}));
    order = expert.argsort(/*stable=*/true, 0);
  }
  Received received;
  const at::Tensor step = at::arange(count, order.options());
  received.back = at::empty_like(order).scatter_(0, order, step);
  received.routing.offsets = at::constant_pad_nd(rows_KE.sum(0).cumsum(0, at::kInt), {1, 0});
  received.routing.token = order.to(at::kInt);
  received.routing.gate = at::ones({count}, gate_like.options());
  received.routing.token_offsets = at::arange(count + 1, received.routing.offsets.options());
  received.routing.token_row = received.back.to(at::kInt);
  received.routing.choice = at::empty({count, 0}, received.routing.offsets.options());
  return received;
}

/// Returns rows [A', d] with zeros behind them, [A, d].
at::Tensor padded_rows(const at::Tensor& rows, int64_t bound) {
  const int64_t missing = bound - rows.size(0);
  return missing == 0 ? rows : at::constant_pad_nd(rows, {0, 0, 0, missing});
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
  at::Tensor y = experts.forward(x, routing, random).y_To;
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
  const Counts even = even_counts(own.max_rows(), group->size());
  const Counts send =
      values ? values_of(rows_KE[group->rank()].reshape({group->size(), each}).sum(1)) : even;
  const Counts receive = values ? values_of(of_this.sum(1)) : even;

  std::vector<int64_t> shape = x.sizes().vec();
  const at::Tensor rows = dispatch(x.dim() > 2 ? x.flatten(1) : x, own);
  // Products round their inputs in any case; what travels is rounded before.
  const std::optional<at::ScalarType> narrow = autocast_type(rows);
  const at::Tensor inputs =
      all_to_all_rows(narrow ? rows.to(*narrow) : rows, send, receive, group).to(x.scalar_type());
  shape[0] = inputs.size(0);
  const Received received = routing_of_received(of_this, inputs.size(0), own.gate);
  const ExpertRows computed = experts.compute(inputs.view(shape), received.routing, random);
  const auto returned = [&](const at::Tensor& made) {
    const at::Tensor by_sender = made.index_select(0, received.back);
    const at::Tensor back =
        all_to_all_rows(narrow ? by_sender.to(*narrow) : by_sender, receive, send, group);
    return padded_rows(back.to(made.scalar_type()), own.max_rows());
  };
  ExpertRows rows_back{.outputs = returned(computed.outputs)};
  // In training nothing reads embeddings.
  const bool wanted = computed.embeddings.defined() && !experts.is_training();
  if (wanted) rows_back.embeddings = returned(computed.embeddings);
  return combined(rows_back, own);
}

}  // namespace

ExpertsOutput Experts::run(const at::Tensor& x, const RoutingRecord& record,
                           const at::Generator& random) {
  if (!mesh_) return forward(x, record.local_rows(record.routing), random);
  const BatchShard shard{mesh_, record.is_local || record.process_group,
                         /*is_expert_parallel=*/true};
  set_batch_shard(*this, shard);
  return needs_whole_batch() ? forward_all_gather(*this, x, record.routing, shard, random)
                             : forward_all_to_all(*this, x, record, shard, random);
}

}  // namespace moesaic::nn
