// SPDX-License-Identifier: Apache-2.0
// What removed experts leave behind, and their removal.
#include <fmt/format.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/prune/merge.h"

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
  const nn::MoELayer& old = block.layer;
  const int64_t each = layer.num_experts / block.num_ranked_groups();
  const at::Tensor cosine_EE = similarities(layer);
  const auto nearest = [&](int64_t expert) {
    int64_t best = -1;
    for (const int64_t kept : layer.kept) {
      if (kept == expert) return kept;
      if (kept / each != expert / each) continue;
      const bool is_nearer = best < 0 || cosine_EE[expert][kept].item<double>() >
                                             cosine_EE[expert][best].item<double>();
      if (is_nearer) best = kept;
    }
    return best;
  };
  MergePlan merging;
  for (int64_t expert = 0; expert < layer.num_experts; ++expert) {
    const auto place = static_cast<size_t>(expert);
    merging.into.push_back(nearest(old->merged_into.empty() ? expert : old->merged_into[place]));
  }
  const std::vector<int64_t> present = old->kept();
  const auto count = static_cast<int64_t>(present.size());
  const auto slot_of = [&](int64_t id) {
    return std::lower_bound(present.begin(), present.end(), id) - present.begin();
  };
  merging.weights_PP = at::zeros({count, count}, at::kDouble);
  for (int64_t slot = 0; slot < count; ++slot) {
    const int64_t id = present[static_cast<size_t>(slot)];
    const double rows = layer.rows_E.defined() ? layer.rows_E[id].item<double>() : 0.0;
    merging.weights_PP[slot_of(merging.into[static_cast<size_t>(id)])][slot] = rows;
  }
  for (int64_t slot = 0; slot < count; ++slot) {
    at::Tensor row = merging.weights_PP[slot];
    const auto sum = row.sum().item<double>();
    if (sum > 0.0) {
      row.div_(sum);
    } else {
      row[slot] = 1.0;
    }
  }
  return merging;
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
