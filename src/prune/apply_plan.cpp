// SPDX-License-Identifier: Apache-2.0
// What removed experts leave behind, and their removal.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "moesaic/base/error.h"
#include "moesaic/prune/plan.h"

namespace moesaic {
namespace {

/// Returns what experts left behind that were removed from the layer before.
const char* replacement_of(const nn::MoELayer& layer) {
  if (!layer->merged_into.empty()) return kMerge;
  return layer->replacement_outputs.defined() ? kReplaceByMean : kReplaceByNothing;
}

bool reroutes(const MoEBlock& block) {
  return block.layer->options().rule.pruned == PrunedSelection::reroute;
}

/// Returns the cosines of the experts' mean outputs, [E, E]; 0 for those without one.
at::Tensor similarities(const PruneLayerPlan& layer) {
  if (!layer.means_Eo.defined() || layer.means_Eo.is_meta()) {
    return at::zeros({layer.num_experts, layer.num_experts}, at::kDouble);
  }
  const at::Tensor norm_E1 = layer.means_Eo.norm(2, {1}, /*keepdim=*/true);
  const at::Tensor unit_Eo = layer.means_Eo / norm_E1.masked_fill(norm_E1.eq(0), 1.0);
  return unit_Eo.mm(unit_Eo.t());
}

}  // namespace

MergePlan plan_merge(const MoEBlock& block, const PruneLayerPlan& layer) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const nn::MoELayer& old = block.layer;
  const int64_t each = layer.num_experts / block.num_ranked_groups();
  const at::Tensor id_E1 = at::arange(layer.num_experts).unsqueeze(1);
  const at::Tensor kept_K = at::tensor(layer.kept, at::kLong);
  // The nearest is of the same group, and of a kept expert that expert itself.
  const at::Tensor nearness_EK =
      similarities(layer)
          .index_select(1, kept_K)
          .masked_fill(id_E1.floor_divide(each).ne(kept_K.floor_divide(each)), -kInfinity)
          .masked_fill(id_E1.eq(kept_K), kInfinity);
  at::Tensor into_E = kept_K.index_select(0, nearness_EK.argmax(1));
  if (!old->merged_into.empty()) {
    into_E = into_E.index_select(0, at::tensor(old->merged_into, at::kLong));
  }
  const at::Tensor present_P = at::tensor(old->kept(), at::kLong);
  const at::Tensor slot_P = at::searchsorted(present_P, into_E.index_select(0, present_P));
  const at::Tensor own_PP = at::eye(present_P.size(0), at::kDouble);
  at::Tensor rows_PP = at::zeros_like(own_PP);
  if (layer.rows_E.defined()) {
    rows_PP.index_put_({slot_P, at::arange(present_P.size(0))},
                       layer.rows_E.index_select(0, present_P).to(at::kDouble));
  }
  const at::Tensor sum_P1 = rows_PP.sum(1, /*keepdim=*/true);
  const auto* into = into_E.const_data_ptr<int64_t>();
  return {{into, into + into_E.numel()}, at::where(sum_P1.gt(0), rows_PP / sum_P1, own_PP)};
}

std::string default_replacement(const Model& model) {
  return std::ranges::any_of(model.moe_blocks(), reroutes) ? kReroute : kReplaceByNothing;
}

std::string replacement_problem(const Model& model, const std::string& replace) {
  const bool can_reroute =
      model.num_members() == 1 && !model.setting_paths().pruned_selection.empty();
  const bool can_merge = !model.setting_paths().merged_into.empty();
  for (const MoEBlock& block : model.moe_blocks()) {
    const nn::MoELayer& layer = block.layer;
    const bool is_rerouted = reroutes(block);
    if (replace == kReroute && layer->options().rule.kind == RoutingKind::threshold) {
      return fmt::format(
          "block {} sends a token to every expert whose logit reaches the threshold, so none is "
          "rerouted; choose the replacement '{}'",
          block.block, kReplaceByNothing);
    }
    if ((replace == kReroute && !is_rerouted && !can_reroute) ||
        (replace == kMerge && !can_merge)) {
      // Of the networks that cannot reroute only ensembles can all store means.
      return fmt::format("networks of the family '{}' cannot {}; choose the replacement {}'{}'",
                         model.config().at("name").get<std::string>(),
                         replace == kMerge ? "merge experts" : "reroute tokens",
                         model.num_members() > 1 ? fmt::format("'{}' or ", kReplaceByMean) : "",
                         kReplaceByNothing);
    }
    if (replace != kReroute && is_rerouted) {
      return fmt::format(
          "block {} reroutes tokens of removed experts, so '{}' cannot replace their outputs; "
          "choose the replacement '{}'",
          block.block, replace, kReroute);
    }
    const std::string earlier = replacement_of(layer);
    if (!layer->is_pruned() || earlier == (replace == kReroute ? kReplaceByNothing : replace)) {
      continue;
    }
    const bool merged = earlier == kMerge || (replace == kMerge && earlier == kReplaceByNothing);
    return fmt::format("earlier pruning {} {}{}; choose the replacement '{}'",
                       merged ? "merged" : "kept", earlier == kReplaceByNothing ? "no " : "",
                       merged ? "experts" : "mean outputs", earlier);
  }
  return "";
}

void apply_plan(Model& model, const PrunePlan& plan) {
  const std::string problem = plan_problem(model, plan);
  if (!problem.empty()) fail_usage("prune: {}", problem);
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  for (const PruneLayerPlan& layer : plan.layers) {
    const MoEBlock& block = *std::ranges::find(blocks, layer.block, &MoEBlock::block);
    nn::MoELayer target = block.layer;
    if (layer.kept.size() == target->kept().size()) continue;
    if (plan.replace == kMerge) {
      const MergePlan merging = plan_merge(block, layer);
      target->merge_experts(layer.kept, merging.into, merging.weights_PP);
    } else {
      target->keep_experts(layer.kept, layer.means_Eo);
    }
  }
  if (plan.replace != kReroute) return;
  for (MoEBlock block : blocks) {
    nn::RouterOptions options = block.layer->options();
    if (options.rule.kind == RoutingKind::threshold) continue;  // Both ways agree.
    options.rule.pruned = PrunedSelection::reroute;
    block.layer->router->set_options(std::move(options));
  }
}

void keep_meta_experts(const MoEBlock& block, const std::vector<int64_t>& ids,
                       const std::string& replace) {
  nn::MoELayer layer = block.layer;
  if (ids == layer->kept()) return;
  if (replace == kMerge) {
    const MergePlan merging =
        plan_merge(block, {.num_experts = layer->options().num_experts, .kept = ids});
    layer->merge_experts(ids, merging.into, merging.weights_PP);
    return;
  }
  at::Tensor means_Eo;
  if (replace == kReplaceByMean) {
    means_Eo = at::empty({layer->options().num_experts, layer->experts->num_outputs()}, at::kMeta);
  }
  layer->keep_experts(ids, means_Eo);
}

}  // namespace moesaic
