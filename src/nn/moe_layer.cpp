// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/moe_layer.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/mlp_experts.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"

namespace moesaic::nn {
namespace {

/// Copies the inputs of tokens into the rows of their experts, [T, ...] -> [A, ...].
at::Tensor dispatched(const at::Tensor& x, const Routing& routing, bool rounds) {
  const at::Tensor x_Td = rounds ? x.flatten(1).to(at::kBFloat16) : x.flatten(1);
  const at::Tensor rows_Ad = dispatch(x_Td, routing).to(x.scalar_type());
  return x.dim() == 2 ? rows_Ad : rows_Ad.unflatten(1, x.sizes().slice(1));
}

void check_can_replace(const RouteOptions& rule) {
  if (rule.pruned == PrunedSelection::reroute) {
    fail(
        "MoELayer: tokens are rerouted from removed experts, so mean outputs or merged experts "
        "cannot replace them");
  }
}

}  // namespace

ExpertRows expert_rows(Experts& experts, const at::Tensor& x, const Routing& routing,
                       const at::Generator& random) {
  const bool rounds = experts.rounds_to_bfloat16();
  ExpertRows rows = experts.compute(dispatched(x, routing, rounds), routing, random);
  // The casts take memory; by now the inputs have none. In backward the casts round gradients.
  if (rounds) rows.outputs = rows.outputs.to(at::kBFloat16).to(x.scalar_type());
  return rows;
}

ExpertsOutput combine_rows(const ExpertRows& rows, const Routing& routing) {
  ExpertsOutput out{combine(rows.outputs, routing), {}};
  if (rows.embeddings.defined()) {
    Routing without_gates = routing;
    without_gates.gate = at::ones_like(routing.gate);
    out.embedding_Td = combine(rows.embeddings, without_gates);
  }
  return out;
}

ExpertsOutput mixture(Experts& experts, const at::Tensor& x, const Routing& routing,
                      const at::Generator& random) {
  std::optional<ExpertsOutput> fused = experts.fused(x, routing, random);
  return fused ? *std::move(fused)
               : combine_rows(expert_rows(experts, x, routing, random), routing);
}

MoELayerImpl::MoELayerImpl(MoELayerOptions options, uint64_t seed)
    : MoELayerImpl(options, make_generator(seed)) {}

MoELayerImpl::MoELayerImpl(const MoELayerOptions& options, at::Generator generator) {
  router =
      register_module("router", Router(RouterOptions{.width = options.width,
                                                     .num_experts = options.num_experts,
                                                     .num_members = options.num_members,
                                                     .rule = options.rule,
                                                     .noise = options.noise,
                                                     .evaluation_seed = options.evaluation_seed},
                                       generator));
  const MlpExperts mlps(MlpExpertsOptions{.num_experts = static_cast<int64_t>(kept().size()),
                                          .width = options.width,
                                          .hidden = options.hidden,
                                          .activation = options.activation,
                                          .bfloat16 = options.bfloat16,
                                          .dropout = options.dropout,
                                          .shared_init = options.shared_init},
                        generator);
  experts = register_module<Experts>("experts", mlps.ptr());
  if (options.mean_replacement && is_pruned()) add_replacement_outputs();
  merged_into = options.merged_into;
}

MoELayerImpl::MoELayerImpl(RouterOptions options, std::shared_ptr<Experts> given,
                           at::Generator generator) {
  experts = register_module("experts", std::move(given));
  router = register_module("router", Router(std::move(options), std::move(generator)));
  if (experts->num_experts() != static_cast<int64_t>(kept().size())) {
    fail("MoELayer: the router sends tokens to {} experts, there are {}", kept().size(),
         experts->num_experts());
  }
}

MoEOutput MoELayerImpl::forward(const at::Tensor& x_Td, const at::Generator& random) const {
  return forward(x_Td, x_Td, random);
}

MoEOutput MoELayerImpl::forward(const at::Tensor& router_input_Td, const at::Tensor& experts_input,
                                const at::Generator& random) const {
  RoutingRecord record = router->forward(router_input_Td, random, experts->needs_whole_batch());
  if (!merged_into.empty()) {
    record.routing =
        routing_to_merged(router->route_to_all(record), merged_slots(), experts->num_experts());
  }
  if (observer_) observer_(record, experts_input);
  ExpertsOutput computed =
      experts->mesh() ? shared_mixture(experts_input, record, random)
                      : mixture(*experts, experts_input, record.local_rows(record.routing), random);
  if (replacement_outputs.defined()) computed.y_To = computed.y_To + replacement_of(record);
  return {std::move(record), std::move(computed.y_To), std::move(computed.embedding_Td)};
}

std::vector<int64_t> MoELayerImpl::merged_slots() const {
  const std::vector<int64_t> present = kept();
  std::vector<int64_t> slots;
  for (const int64_t id : merged_into) {
    slots.push_back(std::lower_bound(present.begin(), present.end(), id) - present.begin());
  }
  return slots;
}

at::Tensor MoELayerImpl::replacement_of(const RoutingRecord& record) const {
  const at::Tensor weights_TE = combine_weights(record.local_rows(router->route_to_all(record)));
  const at::Tensor ids = index_on(weights_TE.device(), removed());
  // LibTorch's index_select() has no meta kernel.
  const at::Tensor gone = weights_TE.index({torch::indexing::Slice(), ids});
  return gone.mm(replacement_outputs.to(weights_TE.options()));
}

void MoELayerImpl::add_replacement_outputs() {
  check_can_replace(options().rule);
  replacement_outputs = register_parameter(
      kReplacementOutputsKey,
      torch::zeros({static_cast<int64_t>(removed().size()), experts->num_outputs()},
                   router->weight.options().requires_grad(false)));
}

void MoELayerImpl::keep_experts(const std::vector<int64_t>& ids, const at::Tensor& means) {
  const std::vector<int64_t> present = kept();
  if (ids.empty()) fail("MoELayer: at least one of the {} experts must be kept", present.size());
  std::vector<int64_t> slots;
  for (const int64_t id : ids) {
    const auto place = std::lower_bound(present.begin(), present.end(), id);
    if (place == present.end() || *place != id) {
      fail("MoELayer: expert {} cannot be kept: it is not among the {} present ones", id,
           present.size());
    }
    slots.push_back(place - present.begin());
  }
  if (!std::is_sorted(slots.begin(), slots.end(), std::less_equal<>())) {
    fail("MoELayer: the experts to keep must be ascending, each once");
  }
  if (means.defined()) check_can_replace(options().rule);
  if (replacement_outputs.defined() && !means.defined() && ids.size() < present.size()) {
    fail("MoELayer: earlier pruning kept mean outputs, so this one needs them too");
  }
  const std::vector<int64_t> gone = removed();
  experts->keep(slots);
  router->keep(ids);
  if (!means.defined() || removed().empty()) return;
  const torch::NoGradGuard no_grad;
  const auto options = router->weight.options();
  const auto count = static_cast<int64_t>(removed().size());
  const at::Tensor left =
      options.device().is_meta()
          ? at::empty({count, means.size(1)}, options)
          : merge_replacement_outputs(means, gone, replacement_outputs, ids).to(options);
  if (!replacement_outputs.defined()) add_replacement_outputs();
  replace_value(replacement_outputs, left);
}

void MoELayerImpl::merge_experts(const std::vector<int64_t>& ids, std::vector<int64_t> into,
                                 const at::Tensor& weights_PP) {
  check_can_replace(options().rule);
  experts->average(weights_PP);
  keep_experts(ids);
  merged_into = std::move(into);
}

at::Tensor merge_replacement_outputs(const at::Tensor& means_Eo, const std::vector<int64_t>& gone,
                                     const at::Tensor& old, const std::vector<int64_t>& kept) {
  at::Tensor all = means_Eo.clone();
  if (old.defined() && !gone.empty()) {
    all.index_copy_(0, at::tensor(gone, at::kLong).to(all.device()), old.detach().to(all));
  }
  at::Tensor is_removed = at::ones({all.size(0)}, all.options().dtype(at::kBool));
  is_removed.index_fill_(0, at::tensor(kept, at::kLong).to(all.device()), false);
  return all.index({is_removed});
}

}  // namespace moesaic::nn
