// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/plan.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/prune/criteria.h"

namespace moesaic {
namespace {

const MoEBlock* find_block(const std::vector<MoEBlock>& blocks, int64_t block) {
  const auto found = std::find_if(blocks.begin(), blocks.end(),
                                  [&](const MoEBlock& b) { return b.block == block; });
  return found == blocks.end() ? nullptr : &*found;
}

std::vector<int64_t> numbers(const std::vector<MoEBlock>& blocks) {
  std::vector<int64_t> list;
  for (const MoEBlock& block : blocks) list.push_back(block.block);
  return list;
}

bool has_id(const std::vector<int64_t>& ascending, int64_t id) {
  return std::binary_search(ascending.begin(), ascending.end(), id);
}

/// Returns the `count` present experts of highest score, ascending; the lower index wins a tie.
std::vector<int64_t> best(const std::vector<double>& scores, std::vector<int64_t> present,
                          int64_t count) {
  std::stable_sort(present.begin(), present.end(),
                   [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  present.resize(count);
  std::sort(present.begin(), present.end());
  return present;
}

/// Checks the number of experts to keep. A token selects k experts whether they are present or not;
/// the paper forbids layers with fewer than k.
void check_count(const KeepRule& rule, const MoEBlock& block, int64_t count) {
  const auto present = static_cast<int64_t>(block.layer->kept().size());
  const int64_t selected = nn::choices_of_token(block.layer->options().rule);
  if (count > present) {
    fail_usage("{}: block {} cannot keep {} experts, it has {}", rule.where, block.block, count,
               present);
  }
  if (count < std::min(selected, present)) {
    fail_usage("{}: block {} would keep {} of {} experts, fewer than the {} that a token selects",
               rule.where, block.block, count, block.layer->options().experts, selected);
  }
}

void check_present(const KeepRule& rule, const MoEBlock& block) {
  const std::vector<int64_t> present = block.layer->kept();
  for (const int64_t id : *rule.ids()) {
    if (!has_id(present, id)) {
      fail_usage("{}: block {} has no expert {}; it has {}", rule.where, block.block, id,
                 fmt::join(present, ", "));
    }
  }
}

/// Returns the number of experts that the rule keeps, after all checks.
int64_t checked_count(const KeepRule& rule, const MoEBlock& block) {
  const int64_t count = rule.count(block.layer->options().experts);
  if (rule.ids() != nullptr) check_present(rule, block);
  check_count(rule, block, count);
  return count;
}

std::vector<int64_t> choose_kept(const KeepRule* rule, const MoEBlock& block,
                                 const std::vector<double>& scores) {
  if (rule == nullptr) return block.layer->kept();
  const int64_t count = checked_count(*rule, block);
  return rule->ids() != nullptr ? *rule->ids() : best(scores, block.layer->kept(), count);
}

const nn::MoELayer& layer_for(const std::vector<MoEBlock>& blocks, const PruneLayerPlan& plan) {
  const MoEBlock* block = find_block(blocks, plan.block);
  if (block == nullptr) fail("apply_plan: block {} has no experts", plan.block);
  const int64_t experts = block->layer->options().experts;
  if (experts != plan.experts) {
    fail("apply_plan: block {} has {} experts, the plan was made for {}", plan.block, experts,
         plan.experts);
  }
  const std::vector<int64_t> present = block->layer->kept();
  const bool ascending = std::is_sorted(plan.kept.begin(), plan.kept.end(), std::less_equal<>());
  const bool there = std::all_of(plan.kept.begin(), plan.kept.end(),
                                 [&](int64_t id) { return has_id(present, id); });
  if (plan.kept.empty() || !ascending || !there) {
    fail("apply_plan: block {} cannot keep the experts {}; it has {}", plan.block,
         fmt::join(plan.kept, ", "), fmt::join(present, ", "));
  }
  return block->layer;
}

}  // namespace

PrunePlan plan_pruning(const Model& finetuned, const Model* pretrained,
                       const std::string& criterion, const KeepSpec& keep, uint64_t seed) {
  const std::vector<MoEBlock> blocks = finetuned.moe_blocks();
  check_keep(finetuned, keep);
  const bool compares = criterion_needs_pretrained(criterion);
  const std::vector<MoEBlock> before =
      compares && pretrained != nullptr ? pretrained->moe_blocks() : std::vector<MoEBlock>{};
  PrunePlan plan{criterion, {}};
  for (const MoEBlock& block : blocks) {
    const MoEBlock* old = find_block(before, block.block);
    if (compares && pretrained != nullptr && old == nullptr) {
      fail_usage("prune: block {} has no experts in the pre-trained network", block.block);
    }
    const std::vector<double> scores = expert_scores(criterion, block, old, seed);
    plan.layers.push_back({block.block, block.layer->options().experts,
                           choose_kept(keep.rule_of(block.block), block, scores), scores});
  }
  return plan;
}

void check_keep(const Model& model, const KeepSpec& keep) {
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  if (blocks.empty()) fail_usage("prune: the network has no layer with experts");
  keep.check_blocks(numbers(blocks));
  for (const MoEBlock& block : blocks) {
    const KeepRule* rule = keep.rule_of(block.block);
    if (rule != nullptr) checked_count(*rule, block);
  }
}

void apply_plan(Model& model, const PrunePlan& plan) {
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  std::vector<nn::MoELayer> layers;
  for (const PruneLayerPlan& layer : plan.layers) layers.push_back(layer_for(blocks, layer));
  for (size_t i = 0; i < layers.size(); ++i) layers[i]->keep_experts(plan.layers[i].kept);
}

nlohmann::ordered_json to_json(const PrunePlan& plan) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const PruneLayerPlan& layer : plan.layers) {
    layers.push_back({{"layer", layer.block},
                      {"experts", layer.experts},
                      {"kept", layer.kept},
                      {"scores", layer.scores}});
  }
  return {{"criterion", plan.criterion}, {"layers", layers}};
}

}  // namespace moesaic
