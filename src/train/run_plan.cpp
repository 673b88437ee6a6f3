// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/data/loader.h"
#include "moesaic/models/registry.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/prune/keep_spec.h"
#include "moesaic/prune/plan.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {
namespace {

void check_pictures(const Model& model, const PhaseConfig& phase, const DatasetInfo& data) {
  const std::vector<int64_t> shape = {data.channels, data.height, data.width};
  if (model.input_shape() == shape) return;
  const std::vector<int64_t> wanted = model.input_shape();
  fail_usage(
      "phase '{}': '{}' has pictures of {} x {} x {} (channels, height, width), the model "
      "takes {} x {} x {}",
      phase.name, phase.data, shape[0], shape[1], shape[2], wanted[0], wanted[1], wanted[2]);
}

int64_t trained_numbers(const Model& model, const PhaseConfig& phase) {
  int64_t count = 0;
  for (const std::string& pattern : phase.trains) {
    const auto parameters = model.named_parameters();
    const bool found = std::any_of(parameters.begin(), parameters.end(), [&](const auto& item) {
      return matches_any(item.key(), {pattern});
    });
    if (!found)
      fail_usage("phase '{}': trains has '{}', but no parameter is called so", phase.name, pattern);
  }
  for (const auto& item : model.named_parameters()) {
    if (matches_any(item.key(), phase.trains)) count += item.value().numel();
  }
  return count;
}

void check_prune(const RunConfig& config, size_t index, const Model& model) {
  const PhaseConfig& phase = config.phases[index];
  const PrunePhaseConfig& prune = *phase.on_entry.prune;
  check_keep(model, KeepSpec::from_value(prune.keep));
  const bool needed = criterion_needs_pretrained(prune.criterion);
  if (prune.pretrained.empty()) {
    if (needed) {
      fail_usage("phase '{}': prune by {} needs 'pretrained', an earlier phase or a checkpoint",
                 phase.name, prune.criterion);
    }
    return;
  }
  std::vector<std::string> earlier;
  for (size_t i = 0; i < index; ++i) earlier.push_back(config.phases[i].name);
  const bool known = std::find(earlier.begin(), earlier.end(), prune.pretrained) != earlier.end();
  if (!known && !std::filesystem::exists(prune.pretrained)) {
    fail_usage("phase '{}': prune.pretrained '{}' is neither an earlier phase nor a folder; {}",
               phase.name, prune.pretrained, did_you_mean(prune.pretrained, earlier));
  }
}

PhasePlan plan_phase(const PhaseConfig& phase, const Model& model, int64_t classes,
                     Datasets& datasets) {
  const std::shared_ptr<const Dataset> data = datasets.get(phase.data, "train");
  check_pictures(model, phase, data->info());
  const auto found = static_cast<int64_t>(data->info().classes.size());
  if (phase.on_entry.new_head) {
    classes = found;
  } else if (classes != found) {
    fail_usage(
        "phase '{}': '{}' has {} classes, the model has {}; set \"on_entry\": {{\"new_head\""
        ": true}} or the model's classes",
        phase.name, phase.data, found, classes);
  }
  if (phase.evaluate) datasets.get(phase.data, "test");
  PhasePlan plan{phase, classes, data->size(), 0, 0, trained_numbers(model, phase)};
  plan.batches_per_epoch = std::max<int64_t>(1, data->size() / phase.batch_size);
  plan.steps = phase.steps ? *phase.steps : *phase.epochs * plan.batches_per_epoch;
  return plan;
}

}  // namespace

std::vector<PhasePlan> plan_phases(const RunConfig& config, const Model& model,
                                   Datasets& datasets) {
  std::vector<PhasePlan> plans;
  int64_t classes = model.classes();
  for (size_t i = 0; i < config.phases.size(); ++i) {
    if (config.phases[i].on_entry.prune) check_prune(config, i, model);
    plans.push_back(plan_phase(config.phases[i], model, classes, datasets));
    classes = plans.back().classes;
  }
  return plans;
}

std::string describe_run(const RunConfig& config, const Model& model,
                         const std::vector<PhasePlan>& phases) {
  std::string text =
      fmt::format("run           {}\nmodel         {}\nparameters    {}\n", config.name,
                  config.model.at("name").as_string(), model.parameter_count());
  text += fmt::format("FLOPs/image   {:.4g}\n\n", model.flops_per_image());
  text += fmt::format("{:<16} {:<24} {:>8} {:>7} {:>6} {:>9} {:>11}  {}\n", "phase", "data",
                      "images", "classes", "batch", "steps", "trained", "on entry");
  for (const PhasePlan& phase : phases) {
    const EntryConfig& entry = phase.config.on_entry;
    std::string actions = entry.prune
                              ? fmt::format("keep {} by {}", entry.prune->keep.to_json().dump(),
                                            entry.prune->criterion)
                              : "";
    if (entry.new_head) actions += actions.empty() ? "new head" : ", new head";
    text += fmt::format("{:<16} {:<24} {:>8} {:>7} {:>6} {:>9} {:>11}  {}\n", phase.config.name,
                        phase.config.data, phase.images, phase.classes, phase.config.batch_size,
                        phase.steps, phase.trained, actions.empty() ? "-" : actions);
  }
  return text;
}

std::shared_ptr<Model> build_initial_model(const RunConfig& config) {
  if (config.model.is_null()) return load_model(config.init);
  return build_model(config.model, static_cast<uint64_t>(config.seed));
}

void load_initial_weights(const RunConfig& config, Model& model) {
  if (config.init.empty()) return;
  const std::shared_ptr<Model> source = load_model(config.init);
  if (config.phases.front().on_entry.new_head && source->classes() != model.classes()) {
    model.reset_head(source->classes());
  }
  load_state(model, state_of(*source), config.init);
}

}  // namespace moesaic
