// SPDX-License-Identifier: Apache-2.0
#include "sweep_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/prune/plan.h"
#include "moesaic/train/run_plan.h"

namespace moesaic {
namespace {

/// Returns the name of a choice with the experts of each layer, if scores do not decide how many;
/// of an ensemble a member's, or their mean, as numbers to keep are.
std::string choice_text(const std::string& name, const KeepSpec& keep, const Model& model) {
  const KeptExperts kept = check_keep(model, keep);
  if (keep.rule_of_network() != nullptr) return name;
  std::vector<double> counts;
  for (const MoEBlock& block : model.moe_blocks()) {
    counts.push_back(static_cast<double>(kept.at(block.block).size()) /
                     static_cast<double>(block.ranked_groups()));
  }
  return fmt::format("{} ({:.3g})", name, fmt::join(counts, ", "));
}

}  // namespace

int64_t experts_of_group(const Model& model) {
  int64_t experts = 0;
  for (const MoEBlock& block : model.moe_blocks()) {
    experts = std::max(experts, block.layer->options().experts / block.ranked_groups());
  }
  return experts;
}

KeepSpec keep_of(const PruneSweepConfig& config, const SweepSize& size) {
  if (size.count > 0) {
    KeepSpec keep = KeepSpec::count(size.count);
    keep.leave_whole(config.whole);
    return keep;
  }
  const auto found =
      std::find_if(config.by_layer.begin(), config.by_layer.end(),
                   [&](const LayerChoice& choice) { return choice.name == size.name; });
  return KeepSpec::from_value(found->keep);
}

std::vector<SweepSize> sizes_of(const PruneSweepConfig& config, const Model& model) {
  const int64_t experts = experts_of_group(model);
  std::vector<int64_t> counts = config.keep;
  // What pruning saves is told of the whole network's cost.
  if (std::find(counts.begin(), counts.end(), experts) == counts.end()) {
    counts.insert(counts.begin(), experts);
  }
  std::vector<SweepSize> sizes;
  for (const int64_t keep : counts) {
    if (keep > experts) fail_usage("keep: {} of {} experts", keep, experts);
    sizes.push_back({sweep_size(keep), keep, fmt::format("{} of {}", keep, experts)});
    if (keep < experts) check_keep(model, keep_of(config, sizes.back()));
  }
  for (const LayerChoice& choice : config.by_layer) {
    const KeepSpec keep = KeepSpec::from_value(choice.keep);
    sizes.push_back({choice.name, 0, choice_text(choice.name, keep, model)});
  }
  return sizes;
}

void check_finetuned(const PruneSweepConfig& config) {
  if (config.finetuned.empty() || path_exists(config.finetuned)) return;
  fail_usage(
      "{}: finetuned '{}' is not there{}; make it first, or leave it empty, 'finetuned=', to train "
      "it here",
      place_of(config.source, {"finetuned"}), config.finetuned, nearest_sibling(config.finetuned));
}

RunConfig first_run(const PruneSweepConfig& config) {
  RunConfig run = config.train;
  if (!config.finetuned.empty()) {
    run.phases.clear();
    run.init = config.finetuned;
    // A plan does without the checkpoint, where train describes its network.
    if (path_exists(config.finetuned)) run.model = Value();
  }
  run.phases.push_back(config.recover);
  return run;
}

std::string plan_prune_sweep(const PruneSweepConfig& config) {
  const RunConfig run = first_run(config);
  std::string text = dry_run(run);
  const std::shared_ptr<Model> model = build_initial_shape(run);
  const std::vector<SweepSize> sizes = sizes_of(config, *model);
  std::vector<int64_t> counts;
  for (const SweepSize& size : sizes) {
    if (size.count > 0) counts.push_back(size.count);
  }
  if (!config.finetuned.empty()) {
    text += fmt::format(
        "\nfine-tuned    {}; nothing is trained before pruning, criteria compare it with {}{}\n",
        config.finetuned, config.train.init, path_exists(config.train.init) ? "" : " (not found)");
  }
  // Networks that keep all experts are the same for every criterion.
  text += fmt::format(
      "\nseeds         {}\nnetworks      {} of each seed, recovered and measured: {} of {} experts "
      "a layer by {}\n",
      config.runs, 1 + (sizes.size() - 1) * config.criteria.size(), fmt::join(counts, ", "),
      experts_of_group(*model), fmt::join(config.criteria, ", "));
  if (!config.whole.empty()) {
    text += fmt::format("whole         blocks {}\n", fmt::join(config.whole, ", "));
  }
  for (const SweepSize& size : sizes) {
    if (size.count == 0) text += fmt::format("by layer      {}\n", size.text);
  }
  return text;
}

}  // namespace moesaic
