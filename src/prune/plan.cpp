// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/plan.h"

#include <fmt/ranges.h>
#include <torch/types.h>

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

/// Divides ascending ids among the members of an ensemble, of which each owns E / M experts in
/// turn.
std::vector<std::vector<int64_t>> by_member(const std::vector<int64_t>& ids,
                                            const nn::RouterOptions& router) {
  std::vector<std::vector<int64_t>> members(router.members);
  const int64_t each = router.experts / router.members;
  for (const int64_t id : ids) members[std::min(id / each, router.members - 1)].push_back(id);
  return members;
}

/// Checks the number of experts to keep of those that share a token: all of a layer, or a member's.
/// A token selects k experts whether they are present or not; the paper forbids fewer than k.
void check_count(const KeepRule& rule, const std::string& where, const nn::RouterOptions& router,
                 int64_t present, int64_t count) {
  const int64_t selected = nn::choices_of_token(router.rule);
  if (count > present) {
    fail_usage("{}: {} cannot keep {} experts, it has {}", rule.where, where, count, present);
  }
  if (count < std::min(selected, present)) {
    fail_usage("{}: {} would keep {} of {} experts, fewer than the {} that a token selects",
               rule.where, where, count, router.experts / router.members, selected);
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

/// Returns the number of experts that the rule keeps of each member, unchecked.
std::vector<int64_t> counts_of(const KeepRule& rule, const nn::RouterOptions& router) {
  if (rule.ids() == nullptr) {
    return std::vector<int64_t>(router.members, rule.count(router.experts / router.members));
  }
  std::vector<int64_t> counts;
  for (const auto& own : by_member(*rule.ids(), router)) {
    counts.push_back(static_cast<int64_t>(own.size()));
  }
  return counts;
}

std::vector<int64_t> checked_counts(const KeepRule& rule, const MoEBlock& block) {
  const nn::RouterOptions& router = block.layer->options();
  if (rule.ids() != nullptr) check_present(rule, block);
  const auto present = by_member(block.layer->kept(), router);
  const std::vector<int64_t> counts = counts_of(rule, router);
  for (size_t member = 0; member < counts.size(); ++member) {
    const std::string where = fmt::format("block {}", block.block) +
                              (router.members > 1 ? fmt::format(", member {}", member) : "");
    check_count(rule, where, router, static_cast<int64_t>(present[member].size()), counts[member]);
  }
  return counts;
}

/// Returns the `counts[m]` present experts of highest score of each member m, or all that it has.
std::vector<int64_t> best_by_member(const MoEBlock& block, const std::vector<double>& scores,
                                    const std::vector<int64_t>& counts) {
  std::vector<int64_t> kept;
  const auto present = by_member(block.layer->kept(), block.layer->options());
  for (size_t member = 0; member < counts.size(); ++member) {
    const auto count = std::min(counts[member], static_cast<int64_t>(present[member].size()));
    const std::vector<int64_t> own = best(scores, present[member], count);
    kept.insert(kept.end(), own.begin(), own.end());
  }
  return kept;
}

std::vector<int64_t> choose_kept(const KeepRule* rule, const MoEBlock& block,
                                 const std::vector<double>& scores) {
  if (rule == nullptr) return block.layer->kept();
  const std::vector<int64_t> counts = checked_counts(*rule, block);
  return rule->ids() != nullptr ? *rule->ids() : best_by_member(block, scores, counts);
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

/// Throws Error (failure) for a number that is not finite, wherever it is: no criterion would see
/// all.
void check_finite(const Model& model, const char* which) {
  for (const auto& [name, tensor] : state_of(model)) {
    if (!tensor.is_floating_point() || tensor.isfinite().all().item<bool>()) continue;
    fail("prune: '{}' of the {} network holds NaN or infinity", name, which);
  }
}

}  // namespace

PrunePlan plan_pruning(const Model& finetuned, const Model* pretrained,
                       const std::string& criterion, const KeepSpec& keep, uint64_t seed) {
  const std::vector<MoEBlock> blocks = finetuned.moe_blocks();
  check_keep(finetuned, keep);
  check_finite(finetuned, "fine-tuned");
  if (pretrained != nullptr) check_finite(*pretrained, "pre-trained");
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
    const nn::RouterOptions& router = block.layer->options();
    plan.layers.push_back({block.block, router.experts,
                           choose_kept(keep.rule_of(block.block), block, scores), scores,
                           router.members});
  }
  return plan;
}

std::vector<int64_t> first_experts(const KeepRule& rule, const MoEBlock& block) {
  const nn::RouterOptions& router = block.layer->options();
  return best_by_member(block, std::vector<double>(router.experts, 0.0), counts_of(rule, router));
}

void check_keep(const Model& model, const KeepSpec& keep) {
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  if (blocks.empty()) fail_usage("prune: the network has no layer with experts");
  keep.check_blocks(numbers(blocks));
  for (const MoEBlock& block : blocks) {
    const KeepRule* rule = keep.rule_of(block.block);
    if (rule != nullptr) checked_counts(*rule, block);
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
