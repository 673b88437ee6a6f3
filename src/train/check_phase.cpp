// SPDX-License-Identifier: Apache-2.0
#include "check_phase.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/data/class_names.h"
#include "moesaic/models/registry.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/prune/plan.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/phase_kind.h"
#include "moesaic/train/task.h"
#include "patterns.h"

namespace moesaic {
namespace {

bool choosing_rows(const nn::RoutingRule& rule) {
  const auto* options = std::get_if<ExpertChoiceOptions>(&rule);
  return options != nullptr && options->rows > 0;
}

/// Returns which setting makes images of `shape` [C, H, W] those of shape `wanted`, "" if none
/// does.
std::string image_remedy(const std::string& phase, const std::vector<int64_t>& shape,
                         const std::vector<int64_t>& wanted) {
  const auto colours = [](int64_t channels) { return channels == 1 || channels == 3; };
  if (shape[0] != wanted[0]) {
    if (!colours(shape[0]) || !colours(wanted[0])) return "";
    return fmt::format("; phases.{}.preprocess.channels={} makes them {}", phase, wanted[0],
                       wanted[0] == 1 ? "grey" : "coloured");
  }
  const std::string size = wanted[1] == wanted[2] ? fmt::format("{}", wanted[1])
                                                  : fmt::format("[{},{}]", wanted[1], wanted[2]);
  return fmt::format("; phases.{}.preprocess.size={} resizes them", phase, size);
}

}  // namespace

void check_tokens(const PhasePlaces& places, const Model& model, const MoEBlock& block,
                  const nn::RoutingRule& rule, int64_t tokens) {
  try {
    const int64_t experts = block.layer->options().experts;
    nn::route(at::empty({tokens, experts}, at::device(at::kMeta)), rule);
  } catch (const Error& error) {
    const SettingPaths paths = model.setting_paths();
    const std::string& rows = choosing_rows(rule) ? paths.rows_per_expert : paths.capacity_factor;
    fail_usage("{}: phase '{}': {}",
               PhasePlaces::blame({places.of_model(paths.group_size, "batch_size"),
                                   places.of_model(rows, "batch_size")}),
               places.phase().name, error.what());
  }
}

void check_images(const PhasePlaces& places, const Model& model, const Dataset& dataset) {
  const DatasetInfo& data = dataset.info();
  const std::vector<int64_t> shape = {data.channels, data.height, data.width};
  if (model.input_shape() == shape) return;
  const std::vector<int64_t> wanted = model.input_shape();
  const SettingPaths paths = model.setting_paths();
  const std::string& setting = shape[0] == wanted[0] ? paths.image_size : paths.channels;
  fail_usage(
      "{}: phase '{}': '{}' has images of {} x {} x {} (channels, height, width), the model takes "
      "{} x {} x {}{}",
      places.of_model(setting, "data"), places.phase().name, places.phase().data, shape[0],
      shape[1], shape[2], wanted[0], wanted[1], wanted[2],
      dataset.has_images() ? image_remedy(places.phase().name, shape, wanted) : "");
}

namespace {

/// Warns of entries of `frozen` that freeze nothing, since `trains` leaves it out.
void warn_of_idle_frozen(const Model& model, const PhaseConfig& phase) {
  const Patterns trains(phase.trains);
  const std::vector<std::string> names = model.named_parameters().keys();
  for (const std::string& text : phase.frozen) {
    const Pattern frozen(text);
    const bool freezes = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return trains.any_found_in(name) && frozen.found_in(name);
    });
    if (freezes) continue;
    log_warning("phase '{}': '{}' in frozen changes nothing: trains has none of its parameters",
                phase.name, text);
  }
}

}  // namespace

int64_t trained_numbers(const Model& model, const PhasePlaces& places) {
  const PhaseConfig& phase = places.phase();
  check_patterns(model, places, "trains", phase.trains);
  check_patterns(model, places, "frozen", phase.frozen);
  warn_of_idle_frozen(model, phase);
  const auto parameters = model.named_parameters();
  int64_t count = 0;
  const std::vector<std::string> names = trained_parameters(model, phase);
  for (const std::string& name : names) count += parameters[name].numel();
  if (count == 0 && phase.steps != 0) {
    fail_usage("{}: phase '{}': {}, so that nothing would train", places.of({"frozen", "trains"}),
               phase.name,
               names.empty() ? "frozen covers all that trains selects"
                             : fmt::format("{} has no numbers", fmt::join(names, " nor ")));
  }
  return count;
}

void check_restored(const RunConfig& config, size_t index, const PhasePlaces& places) {
  std::vector<std::string> earlier;
  for (size_t i = 0; i < index; ++i) earlier.push_back(config.phases[i].name);
  const PhaseConfig& phase = places.phase();
  const std::string& wanted = phase.on_entry.restore;
  if (std::find(earlier.begin(), earlier.end(), wanted) != earlier.end()) return;
  fail_usage("{}: phase '{}': there is no earlier phase '{}' to restore{}{}",
             places.of({"on_entry.restore"}), phase.name, wanted, earlier.empty() ? "" : "; ",
             earlier.empty() ? "" : did_you_mean(wanted, earlier));
}

void check_pretrained(const RunConfig& config, size_t index, const Model& model,
                      MissingFiles missing) {
  const PhaseConfig& phase = config.phases[index];
  const PrunePhaseConfig& prune = *phase.on_entry.prune;
  const std::string place = place_of(prune.source, {"pretrained", "criterion"});
  const bool needed = at_place(place_of(prune.source, {"criterion"}),
                               [&] { return criterion_needs_pretrained(prune.criterion); });
  if (prune.pretrained.empty()) {
    if (needed) {
      fail_usage("{}: phase '{}': prune by {} needs 'pretrained', an earlier phase or a checkpoint",
                 place, phase.name, prune.criterion);
    }
    return;
  }
  std::vector<std::string> earlier;
  for (size_t i = 0; i < index; ++i) earlier.push_back(config.phases[i].name);
  if (std::find(earlier.begin(), earlier.end(), prune.pretrained) != earlier.end()) return;
  if (!path_exists(prune.pretrained)) {
    const bool is_path = prune.pretrained.find('/') != std::string::npos;
    if (missing == MissingFiles::planned && is_path) {
      log_warning("phase '{}': prune.pretrained {} is not here; it is left unchecked", phase.name,
                  prune.pretrained);
      return;
    }
    fail_usage("{}: phase '{}': prune.pretrained '{}' is neither an earlier phase nor a folder; {}",
               place, phase.name, prune.pretrained, did_you_mean(prune.pretrained, earlier));
  }
  // It is verified when it is read, on entry of the phase.
  constexpr LoadOptions kPresent = {.verify = false, .model = false, .optimizer = false};
  const std::string problem = at_place(place, [&] {
    const Value config = model_config(load_newest_checkpoint(prune.pretrained, kPresent));
    return relation_problem(model, *build_model_shape(config));
  });
  if (problem.empty()) return;
  fail_usage("{}: phase '{}': prune.pretrained {} is another network than the one to prune: {}",
             place, phase.name, prune.pretrained, problem);
}

void check_evaluation(const RunConfig& config, const PhasePlaces& places, const Model& model,
                      int64_t images) {
  const SettingPaths paths = model.setting_paths();
  const int64_t batch = std::min(config.evaluate_batch_size, images);
  for (const MoEBlock& block : model.moe_blocks()) {
    const nn::RoutingRule rule = block.layer->router->evaluation_rule();
    for (const int64_t count : {batch, images % batch}) {
      if (count > 0) check_tokens(places, model, block, rule, count * model.tokens_per_image());
    }
  }
}

void check_outputs(const PhasePlaces& places, size_t index, const Model& model,
                   const DatasetInfo& data) {
  const PhaseConfig& phase = places.phase();
  if (phase.on_entry.new_head) return;
  const std::string place =
      index == 0 ? places.of_model(model.setting_paths().classes, "data") : places.of({"data"});
  try {
    task_of(data).check_outputs(model, data);
  } catch (const Error& error) {
    const std::string& setting = model.setting_paths().classes;
    fail_usage("{}: phase '{}': {}; set \"on_entry\": {{\"new_head\": true}} or {}={}", place,
               phase.name, error.what(),
               setting.empty() ? "the model's outputs" : "model." + setting,
               task_of(data).outputs(data));
  }
}

void check_class_names(const PhasePlaces& places, const std::vector<std::string>& classes,
                       Datasets& datasets) {
  const PhaseConfig& phase = places.phase();
  std::vector<std::string> splits = {"train"};
  if (phase.evaluate) {
    for (std::string& split : datasets.evaluation_splits(phase.data)) {
      splits.push_back(std::move(split));
    }
  }
  try {
    for (const std::string& split : splits) {
      with_classes_of(datasets.get(phase.data, split), classes,
                      "set \"on_entry\": {\"new_head\": true} for a head of the data's classes");
    }
  } catch (const Error& error) {
    fail_usage("{}: phase '{}': {}", places.of({"data"}), phase.name, error.what());
  }
}

void check_shares(const RunConfig& config, const PhasePlaces& places, const Model& model) {
  const auto& prune = places.phase().on_entry.prune;
  if (prune && KeepSpec::from_value(prune->keep).chooses_among_layers()) return;
  const auto check = [&] {
    for (const MoEBlock& block : model.moe_blocks()) {
      block.layer->check_shares(config.parallel.experts);
    }
  };
  prune ? at_place(place_of(prune->source, {"keep"}), check) : check();
}

std::shared_ptr<const Dataset> open_data(const PhasePlaces& places, Datasets& datasets,
                                         const Model& model, PreprocessConfig& preprocess) {
  const PhaseConfig& phase = places.phase();
  const std::shared_ptr<const Dataset> data = at_place(places.of({"data"}), [&] {
    for (const std::string& split : datasets.evaluation_splits(phase.data)) {
      if (phase.evaluate) datasets.get(phase.data, split);
    }
    return datasets.get(phase.data, "train");
  });
  preprocess = for_network(phase.preprocess, data->info(), model.input_shape());
  if (phase.preprocess.channels == 0 && preprocess.channels == 1) {
    log_info("phase '{}': the images of '{}' become grey, since the network has one channel",
             phase.name, phase.data);
  }
  return at_place(places.of({"preprocess", "data"}),
                  [&] { return preprocessed(data, preprocess); });
}

}  // namespace moesaic
