// SPDX-License-Identifier: Apache-2.0
#include "check_phase.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/data/class_names.h"
#include "moesaic/models/registry.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/prune/keep_spec.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/phase.h"
#include "moesaic/train/task.h"

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

namespace {

/// Returns the edit distance of a pattern's likely text to the nearest part of a parameter's name.
size_t distance_to(const std::string& pattern, const std::string& name) {
  std::string letters = pattern;
  std::erase_if(letters, [](char c) { return c == '^' || c == '$' || c == '\\'; });
  size_t min = edit_distance(letters, name);
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    min = std::min(min, edit_distance(letters, name.substr(begin, end - begin)));
    begin = end + 1;
  }
  return min;
}

/// Returns the three parameters whose names are nearest to a pattern without a match.
std::string nearest_parameters(const Model& model, const std::string& pattern) {
  std::vector<std::pair<size_t, std::string>> names;
  for (const auto& item : model.named_parameters()) {
    names.emplace_back(distance_to(pattern, item.key()), item.key());
  }
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  names.resize(std::min<size_t>(names.size(), 3));
  std::string text;
  for (const auto& [unused, name] : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

template <class Item, class TextOf>
ConfigProblem problem_in(const std::string& key, const std::vector<Item>& items,
                         const std::string& below, const TextOf& text_of) {
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string problem = Pattern::problem(text_of(items[i]));
    if (!problem.empty()) {
      return {fmt::format("{}: {}", key, problem), {fmt::format("{}.{}{}", key, i, below)}};
    }
  }
  return {};
}

std::vector<std::string> texts_of(const std::vector<PatternValue>& values) {
  std::vector<std::string> texts;
  for (const PatternValue& item : values) texts.push_back(item.pattern);
  return texts;
}

}  // namespace

PatternValues::PatternValues(const std::vector<PatternValue>& values)
    : patterns_(texts_of(values)) {
  for (const PatternValue& item : values) values_.push_back(item.value);
}

double PatternValues::value_for(const std::string& name, double otherwise) const {
  const std::optional<size_t> first = patterns_.first_found_in(name);
  return first ? values_[*first] : otherwise;
}

ConfigProblem patterns_problem(const std::string& key, const std::vector<std::string>& patterns) {
  return problem_in(key, patterns, "", [](const std::string& pattern) { return pattern; });
}

ConfigProblem patterns_problem(const std::string& key, const std::vector<PatternValue>& values) {
  return problem_in(key, values, ".pattern", [](const PatternValue& item) { return item.pattern; });
}

void check_patterns(const Model& model, const PhasePlaces& places, const std::string& setting,
                    const std::vector<std::string>& patterns) {
  const auto parameters = model.named_parameters();
  for (size_t i = 0; i < patterns.size(); ++i) {
    const Pattern pattern(patterns[i]);
    const bool found = std::any_of(parameters.begin(), parameters.end(),
                                   [&](const auto& item) { return pattern.found_in(item.key()); });
    if (found) continue;
    fail_usage("{}: phase '{}': {} has '{}', but no parameter is called so; the nearest are {}",
               places.of({fmt::format("{}.{}", setting, i)}), places.phase().name, setting,
               patterns[i], nearest_parameters(model, patterns[i]));
  }
}

void check_patterns(const Model& model, const PhasePlaces& places, const std::string& setting,
                    const std::vector<PatternValue>& values) {
  check_patterns(model, places, setting, texts_of(values));
}

ConfigProblem first_problem(std::initializer_list<ConfigProblem> problems) {
  for (const ConfigProblem& problem : problems) {
    if (!problem.empty()) return problem;
  }
  return {};
}

}  // namespace moesaic
