// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "moesaic/base/error.h"
#include "moesaic/config/document.h"
#include "moesaic/prune/criteria.h"

namespace moesaic {
namespace {

const MoEBlock* find_block(const std::vector<MoEBlock>& blocks, int64_t block) {
  const auto found = std::find_if(blocks.begin(), blocks.end(),
                                  [&](const MoEBlock& b) { return b.block == block; });
  return found == blocks.end() ? nullptr : &*found;
}

bool has_id(const std::vector<int64_t>& ascending, int64_t id) {
  return std::binary_search(ascending.begin(), ascending.end(), id);
}

bool is_ascending(const std::vector<int64_t>& ids) {
  return std::is_sorted(ids.begin(), ids.end(), std::less_equal<>());
}

/// Throws Error (failure) for a number that is not finite, wherever it is: no criterion would see
/// all. Values apart from the network, those of a file, were checked when they were read.
void check_finite(const Model& model, const TensorMap* values, const char* which) {
  if (values != nullptr) return;
  for (const auto& [name, tensor] : state_of(model)) {
    if (!all_finite(tensor)) {
      fail("prune: '{}' of the {} network holds NaN or infinity", name, which);
    }
  }
}

/// Returns what ParameterValues of a network finds: the tensors of `values` by the names of the
/// network's parameters, or its own where `values` is null.
nn::ParameterValues values_for(const Model& model, const TensorMap* values) {
  if (values == nullptr) return nn::own_values;
  std::unordered_map<const void*, at::Tensor> found;
  for (const auto& item : model.named_parameters()) {
    found[item.value().unsafeGetTensorImpl()] = values->at(item.key());
  }
  return [found = std::move(found)](const at::Tensor& parameter) {
    return found.at(parameter.unsafeGetTensorImpl());
  };
}

const LayerUse* use_of(const ExpertUse* use, int64_t block) {
  if (use == nullptr) return nullptr;
  const auto found = use->find(block);
  return found == use->end() ? nullptr : &found->second;
}

/// Sets what the removed experts of each layer leave behind.
void add_means(PrunePlan& plan, const ExpertUse* use) {
  if (plan.replace != kReplaceByMean) return;
  for (PruneLayerPlan& layer : plan.layers) {
    const LayerUse* found = use_of(use, layer.block);
    if (found == nullptr || !found->outputs_Eo.defined()) {
      fail_usage("prune: replacing experts of block {} by their means needs calibration images",
                 layer.block);
    }
    layer.means_Eo = found->mean_outputs_Eo();
  }
}

/// What is wrong with the plan for a layer of this network, "" if nothing is.
std::string layer_problem(const std::vector<MoEBlock>& blocks, const PruneLayerPlan& layer) {
  const MoEBlock* block = find_block(blocks, layer.block);
  if (block == nullptr) return fmt::format("block {} has no experts", layer.block);
  const int64_t experts = block->layer->options().experts;
  if (experts != layer.experts) {
    return fmt::format("block {} has {} experts, the plan was made for {}", layer.block, experts,
                       layer.experts);
  }
  const std::vector<int64_t> present = block->layer->kept();
  const bool there = std::all_of(layer.kept.begin(), layer.kept.end(),
                                 [&](int64_t id) { return has_id(present, id); });
  if (layer.kept.empty() || !is_ascending(layer.kept) || !there) {
    return fmt::format("block {} cannot keep the experts {}; it has {}", layer.block,
                       fmt::join(layer.kept, ", "), fmt::join(present, ", "));
  }
  if (layer.kept.size() == present.size()) return "";
  return too_few_problem(*block, layer.kept);
}

}  // namespace

ConfigProblem config_problem(const PruneLayerPlan& layer) {
  if (!is_ascending(layer.kept) || layer.kept.back() >= layer.experts) {
    std::set<int64_t> valid(layer.kept.begin(), layer.kept.end());
    valid.erase(valid.lower_bound(layer.experts), valid.end());
    if (valid.empty()) valid.insert(0);
    return {fmt::format("'kept' must be ascending experts below {}, such as [{}], found [{}]",
                        layer.experts, fmt::join(valid, ", "), fmt::join(layer.kept, ", ")),
            {"kept"}};
  }
  if (!layer.scores.empty() && static_cast<int64_t>(layer.scores.size()) != layer.experts) {
    return {
        fmt::format("'scores' has {} numbers for {} experts", layer.scores.size(), layer.experts),
        {"scores"}};
  }
  return {};
}

ConfigProblem config_problem(const PrunePlan& plan) {
  std::vector<int64_t> blocks;
  for (const PruneLayerPlan& layer : plan.layers) blocks.push_back(layer.block);
  if (is_ascending(blocks)) return {};
  return {"'layers' must ascend by 'layer', each once", {"layers"}};
}

PrunePlan read_plan(const std::filesystem::path& path) {
  auto plan = parse<PrunePlan>(Document::from_file(path, kMaxListBytes).root());
  plan.where = path.string();
  return plan;
}

PrunePlan plan_pruning(const PruneInput& input, const PruneOptions& options) {
  const std::vector<MoEBlock> blocks = input.finetuned.moe_blocks();
  check_keep(input.finetuned, options.keep);
  check_finite(input.finetuned, input.finetuned_values, "fine-tuned");
  const bool compares = criterion_needs_pretrained(options.criterion);
  std::vector<MoEBlock> before;
  nn::ParameterValues old_values;
  if (input.pretrained != nullptr) {
    check_finite(*input.pretrained, input.pretrained_values, "pre-trained");
    before = input.pretrained->moe_blocks();
    old_values = values_for(*input.pretrained, input.pretrained_values);
  }
  const nn::ParameterValues values = values_for(input.finetuned, input.finetuned_values);
  ExpertScores scores;
  for (const MoEBlock& block : blocks) {
    const MoEBlock* old = compares ? find_block(before, block.block) : nullptr;
    if (compares && input.pretrained != nullptr && old == nullptr) {
      fail_usage("prune: block {} has no experts in the pre-trained network", block.block);
    }
    scores[block.block] = expert_scores(options.criterion, {.finetuned = block,
                                                            .pretrained = old,
                                                            .use = use_of(input.use, block.block),
                                                            .seed = options.seed,
                                                            .finetuned_values = values,
                                                            .pretrained_values = old_values});
  }
  const KeptExperts kept = choose_experts(input.finetuned, options.keep, scores);
  PrunePlan plan{options.criterion, {}, options.replace.value_or(kReplaceByNothing)};
  for (const MoEBlock& block : blocks) {
    plan.layers.push_back({block.block,
                           block.layer->options().experts,
                           kept.at(block.block),
                           scores.at(block.block),
                           block.ranked_groups(),
                           {}});
  }
  add_means(plan, input.use);
  return plan;
}

PrunePlan plan_pruning(const Model& finetuned, const Model* pretrained,
                       const std::string& criterion, const KeepSpec& keep, uint64_t seed) {
  return plan_pruning({.finetuned = finetuned, .pretrained = pretrained},
                      {.criterion = criterion, .keep = keep, .seed = seed});
}

void complete_plan(PrunePlan& plan, const Model& model, const ExpertUse* use) {
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  for (PruneLayerPlan& layer : plan.layers) {
    const MoEBlock* block = find_block(blocks, layer.block);
    if (block != nullptr) layer.groups = block->ranked_groups();
  }
  add_means(plan, use);
}

std::string replacement_problem(const Model& model, const std::string& replace) {
  const bool means = replace == kReplaceByMean;
  for (const MoEBlock& block : model.moe_blocks()) {
    const nn::MoELayer& layer = block.layer;
    if (means && nn::pruned_selection(layer->options().rule) == PrunedSelection::reroute) {
      return fmt::format("block {} routes tokens past pruned experts, so no mean can replace one",
                         block.block);
    }
    if (!layer->is_pruned() || means == layer->stand_in.defined()) continue;
    return means
               ? "experts that were removed before left nothing, so these cannot leave their means"
               : "experts that were removed before left their means; these need --replace mean too";
  }
  return "";
}

std::string plan_problem(const Model& model, const PrunePlan& plan) {
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  for (const PruneLayerPlan& layer : plan.layers) {
    const std::string problem = layer_problem(blocks, layer);
    if (!problem.empty()) return problem;
  }
  const bool removes = std::any_of(plan.layers.begin(), plan.layers.end(), [&](const auto& layer) {
    return layer.kept.size() < find_block(blocks, layer.block)->layer->kept().size();
  });
  return removes ? replacement_problem(model, plan.replace) : "";
}

void apply_plan(Model& model, const PrunePlan& plan) {
  const std::string problem = plan_problem(model, plan);
  if (!problem.empty()) fail("apply_plan: {}", problem);
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  for (const PruneLayerPlan& layer : plan.layers) {
    nn::MoELayer target = find_block(blocks, layer.block)->layer;
    if (layer.kept.size() < target->kept().size()) {
      target->keep_experts(layer.kept, layer.means_Eo);
    }
  }
}

}  // namespace moesaic
