// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/prune/plan.h"
#include "moesaic/train/dry_run.h"
#include "moesaic/train/run_start.h"
#include "sweep_runs.h"

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

/// Returns the max number of experts of a layer, of those that are ranked together: in an ensemble
/// a member's.
int64_t experts_of_group(const Model& model) {
  int64_t experts = 0;
  for (const MoEBlock& block : model.moe_blocks()) {
    experts = std::max(experts, block.layer->options().experts / block.ranked_groups());
  }
  return experts;
}

/// Returns all sizes of a network's sweep. Throws Error (usage) for one that it cannot have.
std::vector<SweepSize> sizes_of(const SweepConfig& config, const Model& model, int64_t experts) {
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

/// Returns the run that a sweep begins with: training, or only recovery of what is fine-tuned.
RunConfig first_run(const RunsConfig& config) {
  RunConfig run = sweep_train(config);
  const std::string& finetuned = config.sweep.finetuned;
  if (!finetuned.empty()) {
    run.phases.clear();
    run.init = finetuned;
    // A plan does without the checkpoint, where train describes its network.
    if (path_exists(finetuned)) run.model = Value();
  }
  run.phases.push_back(*config.sweep.recover);
  return run;
}

}  // namespace

KeepSpec keep_of(const SweepConfig& config, const SweepSize& size) {
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

SweepPlan sweep_plan(const RunsConfig& config, const std::vector<MeasuredRow>& rows) {
  const std::shared_ptr<Model> model = build_initial_shape(first_run(config));
  SweepPlan plan;
  plan.criteria = config.sweep.criteria;
  plan.exported = config.sweep.exported;
  plan.experts = experts_of_group(*model);
  plan.sizes = sizes_of(config.sweep, *model, plan.experts);
  for (const PhaseConfig& phase : sweep_train(config).phases) {
    plan.phases.push_back({phase.name, phase.data});
    for (const MeasuredRow& row : rows) {
      if (row.name != phase.name) continue;
      plan.phases.back().images = static_cast<int64_t>(row.runs[0].final.numbers.at(kTestImages));
    }
  }
  return plan;
}

std::string plan_of_sweep(const RunsConfig& config) {
  const SweepConfig& sweep = config.sweep;
  const RunConfig run = first_run(config);
  std::string text = dry_run(run);
  const SweepPlan plan = sweep_plan(config);
  std::vector<int64_t> counts;
  for (const SweepSize& size : plan.sizes) {
    if (size.count > 0) counts.push_back(size.count);
  }
  if (!sweep.finetuned.empty()) {
    const std::string before = sweep_train(config).init;
    text += fmt::format(
        "\nfine-tuned    {}; nothing is trained before pruning, criteria compare it with {}{}\n",
        sweep.finetuned, before, path_exists(before) ? "" : " (not found)");
  }
  // Networks that keep all experts are the same for every criterion.
  text += fmt::format(
      "\nseeds         {}\nnetworks      {} of each seed, recovered and measured: {} of {} experts "
      "a layer by {}\n",
      config.runs, 1 + (plan.sizes.size() - 1) * plan.criteria.size(), fmt::join(counts, ", "),
      plan.experts, fmt::join(plan.criteria, ", "));
  if (!sweep.whole.empty()) {
    text += fmt::format("whole         blocks {}\n", fmt::join(sweep.whole, ", "));
  }
  for (const SweepSize& size : plan.sizes) {
    if (size.count == 0) text += fmt::format("by layer      {}\n", size.text);
  }
  return text;
}

}  // namespace moesaic
