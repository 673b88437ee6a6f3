// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/router.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "moesaic/base/random.h"
#include "moesaic/nn/init.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/ops/device.h"
#include "moesaic/ops/enum_names.h"
#include "moesaic/parallel/process_group.h"

namespace moesaic {

std::vector<std::string> noise_kind_names() {
  return {"gaussian", "uniform"};
}
NoiseKind noise_kind_from_name(std::string_view name) {
  return ops::enum_from_name<NoiseKind>("router noise", name, noise_kind_names());
}

double gaussian_noise_std(const NoiseOptions& options, int64_t experts) {
  return options.scale / static_cast<double>(experts);
}

at::Tensor router_noise(int64_t tokens, int64_t experts, const at::TensorOptions& tensor,
                        const NoiseOptions& options, const at::Generator& generator) {
  constexpr const char* kOp = "router_noise";
  if (!(options.scale >= 0.0) || std::isinf(options.scale)) {
    fail("{}: scale must be 0 (no noise) or a positive number, found {}", kOp, options.scale);
  }
  if (!generator.defined()) fail("{}: noise needs a generator", kOp);
  const at::Device device = tensor.device();
  if (!device.is_meta() && generator.device().type() != device.type()) {
    fail("{}: the generator must be on {}, found {}", kOp, device.str(), generator.device().str());
  }
  at::Tensor noise_TE = at::empty({tokens, experts}, tensor.requires_grad(false));
  if (options.scale == 0.0) return noise_TE.zero_();
  if (options.kind == NoiseKind::gaussian) {
    return noise_TE.normal_(0.0, gaussian_noise_std(options, experts), generator);
  }
  noise_TE.uniform_(0.0, 1.0, generator);
  return options.scale == 1.0 ? noise_TE : noise_TE.mul_(options.scale);
}

}  // namespace moesaic

namespace moesaic::nn {
namespace {

/// Returns the rows per token of experts with the capacity of k choices in each group; a group of 0
/// tokens is the limit of large ones.
double rows_of_groups(const RouteOptions& rule, int64_t k, int64_t group, int64_t experts) {
  if (group == 0) {
    return std::min(static_cast<double>(k) * rule.capacity.factor, static_cast<double>(experts));
  }
  const int64_t given = rule.given_rows();
  const int64_t each =
      given > 0 ? given : std::min(group, expert_capacity(group, k, rule.capacity, experts));
  return static_cast<double>(each * experts) / static_cast<double>(group);
}

}  // namespace

std::vector<int64_t> removed_experts(const RouteOptions& rule, int64_t experts) {
  std::vector<int64_t> ids;
  for (int64_t id = 0; !rule.kept.empty() && id < experts; ++id) {
    if (!std::binary_search(rule.kept.begin(), rule.kept.end(), id)) ids.push_back(id);
  }
  return ids;
}

bool is_batch_dependent(const RouteOptions& rule) {
  return rule.is_expert_choice() || (rule.is_token_choice() && rule.capacity.has_capacity());
}

double rows_per_token(const RouteOptions& rule, int64_t tokens, int64_t experts) {
  if (rule.is_token_choice()) return static_cast<double>(rule.k);
  if (!rule.is_expert_choice()) return static_cast<double>(experts);
  const bool alone = tokens == 1;
  int64_t group = rule.group_size;
  if (group == 0 && (!alone || rule.given_rows() > 0)) group = tokens;
  if (!alone) group = std::min(group, tokens);
  return rows_of_groups(rule, 1, group, experts);
}

double capacity_rows_per_token(const RouteOptions& rule, int64_t tokens, int64_t experts) {
  if (!rule.is_token_choice() || !rule.capacity.has_capacity()) {
    return rows_per_token(rule, tokens, experts);
  }
  const int64_t without_groups = rule.capacity.rows > 0 ? tokens : 0;
  const int64_t group = rule.group_size > 0 ? rule.group_size : without_groups;
  return rows_of_groups(rule, rule.k, group, experts);
}

namespace {

/// Scatters values of each token's own experts, [T, E / M], to their columns of [T, E], else 0.
at::Tensor in_columns(const at::Tensor& own, int64_t members) {
  if (members == 1) return own;
  const int64_t each = own.size(1);
  at::Tensor all = at::zeros({own.size(0) / members, members, members, each}, own.options());
  all.diagonal(0, 1, 2).copy_(own.view({-1, members, each}).transpose(1, 2));
  return all.view({own.size(0), members * each});
}

/// Returns the gates of a routing's rows by these logits.
at::Tensor gates_by(const at::Tensor& logits_TE, const Routing& routing,
                    const RouteOptions& options) {
  if (!options.is_token_choice()) fail("Router: gates without the noise are of token choice only");
  const bool softmax = options.gate != Gate::logit;
  const bool reroute = options.pruned == PrunedSelection::reroute;
  at::Tensor values = softmax && !reroute ? logits_TE.softmax(1) : logits_TE;
  if (!options.kept.empty()) {
    values = values.index_select(1, index_on(values.device(), options.kept));
  }
  if (softmax && reroute) values = values.softmax(1);
  // Every row has a place of its own, unused ones among zeros behind the last: the gradient adds
  // nothing up and, but for deterministic runs, sorts nothing.
  const at::Tensor slot = row_experts(routing), unused = slot.eq(values.size(1));
  const at::Tensor row = at::arange(slot.size(0), slot.options());
  const at::Tensor place =
      at::where(unused, row + values.numel(), routing.token.to(at::kLong) * values.size(1) + slot);
  return at::cat({values.flatten(), values.new_zeros(slot.sizes())}).gather(0, place);
}

}  // namespace

Routing RoutingRecord::local_rows(const Routing& of_all) const {
  if (!process_group) return of_all;
  const int64_t count = of_all.num_tokens() / process_group->size();
  return routing_of_tokens(of_all, process_group->rank() * count, count);
}

double RouterOptions::noise_scale() const {
  return noise.kind == NoiseKind::gaussian ? gaussian_noise_std(noise, num_experts / num_members)
                                           : noise.scale;
}

RouterImpl::RouterImpl(RouterOptions options, at::Generator generator)
    : options_(std::move(options)) {
  if (options_.num_members < 1 || options_.num_experts % options_.num_members != 0) {
    fail("Router: {1} experts cannot be divided equally among {0} members", options_.num_members,
         options_.num_experts);
  }
  weight = register_parameter("weight", torch::empty({options_.num_experts, options_.width}));
  lecun_normal(weight, options_.width, std::move(generator));
}

at::Tensor RouterImpl::logits(const at::Tensor& x_Td) const {
  // Small differences of logits decide the routing.
  const NoAutocastGuard no_autocast;
  const NoTf32 exact_products(x_Td.device());
  at::Tensor logits_TE = at::linear(x_Td.to(weight.scalar_type()), weight);
  const int64_t members = options_.num_members;
  if (members == 1) return logits_TE;
  if (x_Td.size(0) % members != 0) {
    fail("Router: {} tokens cannot be divided equally among {} members", x_Td.size(0), members);
  }
  const int64_t experts = logits_TE.size(1);
  const at::Tensor own = at::eye(members, logits_TE.options().dtype(at::kBool));
  const at::Tensor is_other_ME = own.repeat_interleave(experts / members, 1).eq(0);
  return logits_TE.view({-1, members, experts})
      .masked_fill(is_other_ME, -std::numeric_limits<double>::infinity())
      .view_as(logits_TE);
}

at::Tensor RouterImpl::noise(int64_t tokens, const at::TensorOptions& options,
                             const at::Generator& random) const {
  const int64_t each = options_.num_experts / options_.num_members;
  const double scale = options_.noise_scale();
  if (replayed_noise_.defined()) return replayed_noise_ * scale;
  if (random.defined()) return router_noise(tokens, each, options, options_.noise, random);
  const bool gaussian = options_.noise.kind == NoiseKind::gaussian;
  at::Tensor noise = at::empty({tokens, each}, at::kFloat);
  auto* const numbers = noise.mutable_data_ptr<float>();
  at::parallel_for(0, tokens, 256, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      CounterRng rng(*options_.evaluation_seed, stream_id(kEvaluationNoiseStream),
                     static_cast<uint64_t>(first_token_ + t));
      for (int64_t e = 0; e < each; ++e) {
        numbers[t * each + e] =
            static_cast<float>(scale * (gaussian ? rng.normal() : rng.uniform()));
      }
    }
  });
  return noise.to(options);
}

RouteOptions RouterImpl::evaluation_rule() const {
  RouteOptions rule = options_.rule;
  if (const std::optional<double> factor = rule.capacity.evaluation_factor) {
    rule.capacity.factor = *factor;
    rule.capacity.rows = rule.l = 0;
  }
  return rule;
}

Routing RouterImpl::routed(const RoutingRecord& record, const RouteOptions& rule) const {
  Routing routing = moesaic::route(record.noisy_logits_TE, rule);
  const bool noisy = !record.noisy_logits_TE.is_same(record.logits_TE);
  if (noisy && !options_.gate_noise) routing.gate = gates_by(record.logits_TE, routing, rule);
  return routing;
}

Routing RouterImpl::route_to_all(const RoutingRecord& record) const {
  RouteOptions rule = is_training() ? options_.rule : evaluation_rule();
  rule.kept.clear();
  return routed(record, rule);
}

RoutingRecord RouterImpl::forward(const at::Tensor& x_Td, const at::Generator& random,
                                  bool needs_whole_batch) const {
  RoutingRecord record;
  record.logits_TE = logits(x_Td);
  const auto process_group = batch_shard().process_group();
  const int64_t group = options_.rule.group_size;
  const bool whole_groups = group > 0 && x_Td.size(0) % group == 0;
  // Evaluations count the routing of the whole batch.
  record.is_local = process_group && !needs_whole_batch && is_training() && whole_groups;
  if (!record.is_local) record.process_group = process_group;
  if (record.process_group) record.logits_TE = all_gather_rows(record.logits_TE, process_group);
  record.noisy_logits_TE = record.logits_TE;
  const bool drawn = random.defined() || (options_.evaluation_seed && !record.logits_TE.is_meta());
  const bool noisy = drawn && options_.noise.scale > 0.0;
  if (noisy) {
    // A shard has the noise that its tokens have in the whole batch.
    const int64_t tokens = record.logits_TE.size(0),
                  all = record.is_local ? process_group->size() : 1;
    const at::Tensor of_own =
        noise(all * tokens, record.logits_TE.options(), random)
            .narrow(0, record.is_local ? process_group->rank() * tokens : 0, tokens);
    record.noisy_logits_TE = record.logits_TE + in_columns(of_own, options_.num_members);
    const bool gaussian = options_.noise.kind == NoiseKind::gaussian;
    record.noise_std = gaussian ? options_.noise_scale() : 0.0;
  }
  record.routing = routed(record, is_training() ? options_.rule : evaluation_rule());
  record.kept = kept();
  record.is_rerouted = options_.rule.is_rerouted();
  record.group_size = group;
  record.num_members = options_.num_members;
  return record;
}

void RouterImpl::set_options(RouterOptions options) {
  if (options.width != weight.size(1) || options.num_experts != weight.size(0)) {
    fail("Router: {} x {} weights cannot become {} x {} ones", weight.size(0), weight.size(1),
         options.num_experts, options.width);
  }
  options_ = std::move(options);
}

void RouterImpl::keep(const std::vector<int64_t>& experts) {
  const bool all = static_cast<int64_t>(experts.size()) == options_.num_experts;
  options_.rule.kept = all ? std::vector<int64_t>{} : experts;
}

std::vector<int64_t> RouterImpl::kept() const {
  if (is_pruned()) return options_.rule.kept;
  std::vector<int64_t> all(options_.num_experts);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

at::Tensor member_logits(const at::Tensor& logits_TE, int64_t members) {
  const int64_t each = logits_TE.size(1) / members;
  return logits_TE.view({-1, members, members, each}).diagonal(0, 1, 2).permute({2, 0, 1});
}

}  // namespace moesaic::nn
