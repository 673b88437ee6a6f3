// SPDX-License-Identifier: Apache-2.0
// What removed experts leave behind, and their removal.
#include <fmt/format.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/prune/merge.h"
#include "moesaic/prune/plan.h"

namespace moesaic {
namespace {

/// Returns what experts left behind that were removed from the layer before.
const char* replacement_of(const nn::MoELayer& layer) {
  if (!layer->merged_into.empty()) return kMerge;
  return layer->replacement_outputs.defined() ? kReplaceByMean : kReplaceByNothing;
}

bool reroutes(const MoEBlock& block) {
  return nn::pruned_selection(block.layer->options().rule) == PrunedSelection::reroute;
}

}  // namespace

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
    const auto reroute = [](auto& rule) {  // By a threshold both ways agree.
      if constexpr (requires { rule.pruned; }) rule.pruned = PrunedSelection::reroute;
    };
    std::visit(reroute, options.rule);
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
