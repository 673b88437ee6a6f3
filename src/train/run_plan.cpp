// SPDX-License-Identifier: Apache-2.0
// Plan of a run's phases: checks of a phase, then the plans.
#include "moesaic/train/run_plan.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/data/views.h"
#include "moesaic/formats/image.h"
#include "moesaic/models/registry.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/distill.h"
#include "moesaic/train/gradient_phase.h"

namespace moesaic {
namespace {

/// The network on the meta device as each phase finds it, as far as known before training: how many
/// experts stay, but not which ones. It is that of the start until a phase changes it.
class PlannedModel {
 public:
  /// `outputs` are the names of the outputs of `model`, the network of the start.
  PlannedModel(const Model& model, std::vector<std::string> outputs)
      : classes(std::move(outputs)), model_(&model) {}

  /// Names of the outputs, none where they are not known. Their order is that of the data in which
  /// they began, which a resumed run finds in its checkpoint only.
  std::vector<std::string> classes;

  /// Names of the phases before this one, in order.
  std::vector<std::string> earlier;

  const Model& model() const { return *model_; }

  void upcycle(const Upcycling& upcycling) {
    copy_ = model_->upcycled(upcycling, 0);
    model_ = copy_.get();
  }

  void prune(const KeepSpec& keep, const std::string& replace) {
    apply_plan(changed(), {"", {}, replace});  // It removes nothing yet.
    KeptExperts kept;
    // Which layers keep how many is not known before there are scores; here all are equal.
    if (!names_unknown_experts(keep)) kept = check_keep(*model_, keep);
    for (const MoEBlock& block : changed().moe_blocks()) {
      const KeepRule* rule = keep.rule_of(block.block);
      if (rule == nullptr) continue;
      const bool known = rule->ids() != nullptr && !guessed_.contains(block.block);
      const std::vector<int64_t> ids = kept.contains(block.block) ? kept.at(block.block)
                                       : known                    ? *rule->ids()
                                                                  : first_experts(*rule, block);
      if (!known && ids.size() < block.layer->kept().size()) guessed_.insert(block.block);
      keep_meta_experts(block, ids, replace);
    }
  }

  void reset_head(int64_t outputs) { replace_head(changed(), outputs); }

  /// Returns the network of an earlier phase, as a teacher; nothing where no phase is called so.
  std::optional<PlannedTeacher> after(const std::string& phase) const {
    const auto ended = ended_.find(phase);
    if (ended == ended_.end()) return std::nullopt;
    return PlannedTeacher{build_meta_model(Value::from_json(ended->second.model, "model")),
                          ended->second.classes, ended->second.mean, ended->second.std};
  }

  /// Remembers the network as it is at the end of a phase, for restore().
  void end(const std::string& phase, const DatasetInfo& data) {
    ended_[phase] = {model_->config(), guessed_, classes, data.mean, data.std};
    earlier.push_back(phase);
  }

  void restore(const std::string& phase) {
    const Ended& ended = ended_.at(phase);
    take(ended.model);
    guessed_ = ended.guessed;
    classes = ended.classes;
  }

 private:
  void take(const Json& config) {
    copy_ = build_meta_model(Value::from_json(config, "model"));
    model_ = copy_.get();
  }
  /// Returns a copy that a phase may change.
  Model& changed() {
    if (copy_ == nullptr) take(model_->config());
    return *copy_;
  }

  bool names_unknown_experts(const KeepSpec& keep) const {
    return std::any_of(guessed_.begin(), guessed_.end(), [&](int64_t block) {
      const KeepRule* rule = keep.rule_of(block);
      return rule != nullptr && rule->ids() != nullptr;
    });
  }

  struct Ended {
    Json model;
    std::set<int64_t> guessed;
    std::vector<std::string> classes;
    std::vector<double> mean, std;  ///< Of its data.
  };

  std::map<std::string, Ended> ended_;
  std::shared_ptr<Model> copy_;
  const Model* model_;
  std::set<int64_t> guessed_;  ///< Blocks that are pruned by scores.
};

/// Returns which setting makes images of `shape` [C, H, W] those of shape `wanted`, "" if none
/// does.
std::string image_remedy(const std::string& phase, const std::vector<int64_t>& shape,
                         const std::vector<int64_t>& wanted) {
  if (shape[0] != wanted[0]) {
    if (!can_convert_channels(shape[0], wanted[0])) return "";
    return fmt::format("; phases.{}.preprocess.channels={} makes them {}", phase, wanted[0],
                       wanted[0] == 1 ? "grey" : "coloured");
  }
  const std::string size = wanted[1] == wanted[2] ? fmt::format("{}", wanted[1])
                                                  : fmt::format("[{},{}]", wanted[1], wanted[2]);
  return fmt::format("; phases.{}.preprocess.size={} resizes them", phase, size);
}

/// Checks that the data have inputs of the shape that the network takes.
void check_images(const SettingLocations& locations, const Model& model, const Dataset& dataset) {
  const DatasetInfo& data = dataset.info();
  const std::string problem = inputs_problem(model, data);
  if (problem.empty()) return;
  const std::vector<int64_t> shape = {data.channels, data.height, data.width};
  const std::vector<int64_t> wanted = model.input_shape();
  const auto setting = shape[0] == wanted[0] ? &SettingPaths::image_size : &SettingPaths::channels;
  fail_usage("{}: {}{}",
             locations.at_place(locations.find_in_model(model.setting_paths().*setting, "data")),
             problem,
             dataset.has_images() ? image_remedy(locations.phase().name, shape, wanted) : "");
}

/// Warns of entries of `frozen` that freeze nothing, since `trainable` leaves it out.
void warn_of_idle_frozen(const Model& model, const PhaseConfig& phase) {
  const Patterns trainable(phase.trainable);
  const std::vector<std::string> names = model.named_parameters().keys();
  for (const std::string& text : phase.frozen) {
    const Pattern frozen(text);
    const bool freezes = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return trainable.any_matches(name) && frozen.matches(name);
    });
    if (freezes) continue;
    log_warning(
        "phase '{}': '{}' in frozen has no effect: trainable selects none of its parameters",
        phase.name, text);
  }
}

/// Returns how many numbers of the network the phase trains, at least one where it has steps.
int64_t count_trained_parameters(const Model& model, const SettingLocations& locations) {
  const PhaseConfig& phase = locations.phase();
  check_patterns(model, locations, "trainable", phase.trainable);
  check_patterns(model, locations, "frozen", phase.frozen);
  warn_of_idle_frozen(model, phase);
  const auto parameters = model.named_parameters();
  int64_t count = 0;
  const std::vector<std::string> names = trained_parameters(model, phase);
  for (const std::string& name : names) count += parameters[name].numel();
  if (count == 0 && phase.steps != 0) {
    fail_usage("{}: {}, so no parameter would be trained", locations.at({"frozen", "trainable"}),
               names.empty() ? "frozen covers all that trainable selects"
                             : fmt::format("{} has no numbers", fmt::join(names, " nor ")));
  }
  return count;
}

/// Checks that the phase restores an earlier one.
void check_restored(const std::vector<std::string>& earlier, const SettingLocations& locations) {
  const std::string& wanted = locations.phase().on_entry.restore;
  if (std::ranges::count(earlier, wanted) > 0) return;
  fail_usage("{}: no earlier phase is called '{}'{}{}", locations.at({"on_entry.restore"}), wanted,
             earlier.empty() ? "" : "; ", earlier.empty() ? "" : did_you_mean(wanted, earlier));
}

/// Checks the network that pruning on entry of the phase compares the planned one with.
void check_pretrained(const RunConfig& config, const PhaseConfig& phase,
                      const PlannedModel& network, MissingFiles missing) {
  const PrunePhaseConfig& prune = *phase.on_entry.prune;
  const std::string place = location_of(prune.source, {"pretrained", "criterion"});
  const bool needed = at_location(location_of(prune.source, {"criterion"}),
                                  [&] { return criterion_of(prune.criterion).needs_pretrained; });
  if (prune.pretrained.empty()) {
    if (needed) {
      fail_usage("{}: phase '{}': prune by {} needs 'pretrained', an earlier phase or a checkpoint",
                 place, phase.name, prune.criterion);
    }
    return;
  }
  const std::optional<PlannedTeacher> ended = network.after(prune.pretrained);
  if (ended && !needed) return;
  if (!ended && !path_exists(prune.pretrained)) {
    const bool is_path = prune.pretrained.find('/') != std::string::npos;
    if (missing == MissingFiles::warn && is_path) {
      log_warning("phase '{}': prune.pretrained {} is not here; it is left unchecked", phase.name,
                  prune.pretrained);
      return;
    }
    const std::string hint = did_you_mean(prune.pretrained, network.earlier);
    fail_usage("{}: phase '{}': prune.pretrained '{}' is neither an earlier phase nor a folder{}{}",
               place, phase.name, prune.pretrained, hint.empty() ? "" : "; ", hint);
  }
  // A checkpoint is verified when it is read, on entry of the phase.
  const LoadOptions present = {
      .verify = false, .load_model = false, .load_optimizer = false, .trust = config.trust};
  const std::string problem = at_location(place, [&] {
    if (ended) return pretrained_problem(network.model(), *ended->shape);
    const Value config = model_config(load_newest_checkpoint(prune.pretrained, present));
    return pretrained_problem(network.model(), *build_meta_model(config));
  });
  if (problem.empty()) return;
  fail_usage("{}: phase '{}': prune.pretrained {} is another network than the one to prune: {}",
             place, phase.name, prune.pretrained, problem);
}

/// Checks the batches of an evaluation, whose last one may be smaller.
void check_evaluation(const RunConfig& config, const SettingLocations& locations,
                      const Model& model, int64_t images) {
  const int64_t batch = std::min(config.evaluate_batch_size, images);
  for (const MoEBlock& block : model.moe_blocks()) {
    const RouteOptions rule = block.layer->router->evaluation_rule();
    for (const int64_t count : {batch, images % batch}) {
      if (count > 0) check_tokens(locations, model, block, rule, count * model.tokens_per_image());
    }
  }
}

/// Returns which classes have no images, where the others are as many as the network's outputs, as
/// a part of a line: their folders may be there by mistake.
std::string classes_without_images(const Dataset& data, int64_t outputs) {
  std::vector<std::string> names = data.info().classes;
  if (std::ssize(names) <= outputs || data.is_endless() || !data.blocks().empty()) return "";
  std::vector<bool> used(names.size());
  for (int64_t i = 0; i < data.size(); ++i) used[static_cast<size_t>(data.label(i))] = true;
  size_t label = 0;
  std::erase_if(names, [&](const std::string&) { return used[label++]; });
  if (names.empty() || std::ssize(used) - std::ssize(names) != outputs) return "";
  return fmt::format("; {} of the classes {} no images ({}): remove {} if that is a mistake",
                     names.size(), names.size() == 1 ? "has" : "have", quoted_names(names),
                     names.size() == 1 ? "it" : "them");
}

/// Returns whether the network can get a head of so many outputs.
bool takes_new_head(const Model& model, int64_t outputs) try {
  replace_head(*meta_copy(model), outputs);
  return true;
} catch (const Error&) {
  return false;
}

/// Checks that the network of phase `index` has outputs for the data, unless it gets a new head.
void check_outputs(const RunConfig& config, const SettingLocations& locations, size_t index,
                   const Model& model, const Dataset& dataset) {
  const DatasetInfo& data = dataset.info();
  const PhaseConfig& phase = locations.phase();
  if (phase.on_entry.new_head) return;
  const std::string place = index == 0
                                ? locations.find_in_model(model.setting_paths().classes, "data")
                                : locations.find({"data"});
  try {
    check_num_outputs(model, data);
  } catch (const Error& error) {
    const std::string& setting = model.setting_paths().classes;
    const int64_t outputs = outputs_for(data);
    std::vector<std::string> remedies;
    if (takes_new_head(model, outputs)) remedies = {R"("on_entry": {"new_head": true})"};
    const bool fits = config.init.empty();  // The weights of init fit no other number of outputs.
    if (fits && !setting.empty()) remedies.push_back(fmt::format("model.{}={}", setting, outputs));
    fail_usage("{}: {}{}{}{}", locations.at_place(place), error.what(),
               classes_without_images(dataset, model.num_classes()),
               remedies.empty() ? "" : "; set ", fmt::join(remedies, " or "));
  }
}

/// Checks that the network's outputs are called as those of the data.
void check_class_names(const SettingLocations& locations, const PlannedModel& network,
                       DatasetCache& datasets) {
  constexpr std::string_view kNewHead =
      "set \"on_entry\": {\"new_head\": true} for a head of the data's classes";
  const PhaseConfig& phase = locations.phase();
  const DatasetInfo& trained = datasets.get(phase.data, "train")->info();
  // A new head has the classes of the training images.
  const bool helps = !phase.on_entry.new_head && trained.classes != network.classes &&
                     takes_new_head(network.model(), outputs_for(trained));
  std::vector<std::string> splits = datasets.evaluation_splits(phase.data);
  if (!phase.evaluate) splits.clear();
  splits.insert(splits.begin(), "train");
  try {
    for (const std::string& split : splits) {
      with_classes_of(datasets.get(phase.data, split), network.classes,
                      helps && split == "train" ? kNewHead : kRenameClass);
    }
  } catch (const Error& error) {
    fail_usage("{}: {}", locations.at({"data"}), error.what());
  }
}

/// Checks that processes can share the experts that a phase has. What `keep` leaves of a layer may
/// be known only when it prunes.
void check_expert_shards(const RunConfig& config, const SettingLocations& locations,
                         const Model& model) {
  const auto& prune = locations.phase().on_entry.prune;
  if (prune && KeepSpec::from_value(prune->keep).chooses_among_layers()) return;
  const auto check = [&] {
    for (const MoEBlock& block : model.moe_blocks()) {
      block.layer->experts->check_shards(config.parallel.expert_parallel_size);
    }
  };
  prune ? at_location(location_of(prune->source, {"keep"}), check) : check();
}

/// Returns whether one of a few images, which are spread over the data, has a colour.
bool any_coloured(const Dataset& data) {
  constexpr int64_t kMost = 8;
  if (!data.blocks().empty()) return false;  // Shards may have to be fetched first.
  const int64_t step = (data.size() + kMost - 1) / kMost;
  for (int64_t i = 0; i < data.size(); i += step) {
    try {
      const std::optional<EncodedImage> file = data.encoded(i);
      if (!file) return false;
      const auto* const bytes = reinterpret_cast<const uint8_t*>(file->bytes.data());
      std::vector<uint8_t> rgb;
      ImageDecoder(std::span(bytes, file->bytes.size())).decode(/*max_reduction=*/8, rgb);
      for (size_t at = 0; at < rgb.size(); at += 3) {
        if (rgb[at] != rgb[at + 1] || rgb[at] != rgb[at + 2]) return true;
      }
    } catch (const Error&) {
      // Whoever reads it for a batch says what is wrong with it.
    }
  }
  return false;
}

/// Returns the preprocessed training data. Completes `preprocess` by what the network takes.
std::shared_ptr<const Dataset> open_data(const SettingLocations& locations, DatasetCache& datasets,
                                         const Model& model, PreprocessConfig& preprocess) {
  const PhaseConfig& phase = locations.phase();
  const std::shared_ptr<const Dataset> data = at_location(locations.find({"data"}), [&] {
    for (const std::string& split : datasets.evaluation_splits(phase.data)) {
      if (phase.evaluate) datasets.get(phase.data, split);
    }
    return datasets.get(phase.data, "train");
  });
  preprocess = for_network(phase.preprocess, data->info(), model.input_shape());
  if (phase.preprocess.channels == 0 && preprocess.channels == 1) {
    const std::string what =
        fmt::format("phase '{}': the images of '{}' become grey, since the network has one channel",
                    phase.name, phase.data);
    const std::string& setting = model.setting_paths().channels;
    if (locations.is_default(setting) && any_coloured(*data)) {
      log_warning("{} by default; model.{}=3 keeps their colours", what, setting);
    } else {
      log_info("{}", what);
    }
  }
  return at_location(locations.find({"preprocess", "data"}),
                     [&] { return preprocessed(data, preprocess); });
}

/// Returns what RunStart::classes() does, unverified; none where `init` cannot be read, which
/// whoever needs its weights finds out.
std::vector<std::string> initial_classes(const RunConfig& config) try {
  return config.init.empty() ? std::vector<std::string>()
                             : class_names_of(config.init, config.trust);
} catch (const Error&) {
  return {};
}

PhasePlan plan_phase(const RunConfig& config, size_t index, PlannedModel& network,
                     DatasetCache& datasets, MissingFiles missing) {
  const PhaseConfig& phase = config.phases[index];
  const SettingLocations locations(config.model, phase);
  PhasePlan plan{.config = phase,
                 .precision = config.precision,
                 .activation_checkpointing = config.activation_checkpointing};
  const auto* const gradient = phase.kind.find<GradientConfig>();
  if (gradient != nullptr && gradient->ema_decay > 0.0 && config.parallel.shard_optimizer) {
    fail_usage(
        "{}: ema_decay does not support sharded optimizers; set it to 0, or "
        "parallel.shard_optimizer to false",
        locations.at({"ema_decay"}));
  }
  const std::shared_ptr<const Dataset> data =
      open_data(locations, datasets, network.model(), plan.config.preprocess);
  if (!phase.on_entry.restore.empty()) {
    check_restored(network.earlier, locations);
    network.restore(phase.on_entry.restore);
  }
  check_images(locations, network.model(), *data);
  check_outputs(config, locations, index, network.model(), *data);
  if (!data->info().classes.empty()) {
    const bool named = !network.classes.empty() || phase.on_entry.new_head;
    const bool begun = index > 0 || (!config.init.empty() && path_exists(config.init));
    if (!named && begun && data->info().has_class_names) {
      log_warning(
          "{}: the network has no class names: its outputs are assumed to be the classes of '{}', "
          "in their order",
          locations.at({"data"}), phase.data);
    }
    if (!named || phase.on_entry.new_head) {
      network.classes =
          data->info().has_class_names ? data->info().classes : std::vector<std::string>();
    }
    check_class_names(locations, network, datasets);
  }
  if (const auto& upcycling = phase.on_entry.upcycle) {
    at_location(locations.find({"on_entry.upcycle"}), [&] { network.upcycle(*upcycling); });
  }
  if (phase.on_entry.prune) {
    check_pretrained(config, phase, network, missing);
    const PrunePhaseConfig& prune = *phase.on_entry.prune;
    const std::string replace = prune.replace.value_or(default_replacement(network.model()));
    const std::string problem = replacement_problem(network.model(), replace);
    if (!problem.empty()) {
      const std::string place = location_of(prune.source, {"replace", "keep"});
      fail_usage("{}: {}", locations.at_place(place), problem);
    }
    network.prune(KeepSpec::from_value(prune.keep), replace);
  }
  plan.num_outputs = outputs_for(data->info());
  plan.classes = network.classes;
  if (phase.on_entry.new_head) network.reset_head(plan.num_outputs);
  if (const std::string* const name = find_teacher(plan.config); name && !name->empty()) {
    std::optional<PlannedTeacher> teacher = network.after(*name);
    const bool may_be_missing = missing == MissingFiles::warn;
    if (!teacher)
      teacher = teacher_in(*name, locations, network.earlier, config.phases, may_be_missing);
    if (teacher) {
      check_teacher(*teacher, locations, network.model(), network.classes, data->info());
      plan.num_teacher_parameters = teacher->shape->num_parameters();
    }
  }
  plan.num_images = data->size();
  plan.num_trained_parameters = count_trained_parameters(network.model(), locations);
  check_expert_shards(config, locations, network.model());
  phase_kinds().at(phase.kind.name()).plan(plan, locations, network.model(), *data);
  network.end(phase.name, data->info());
  if (!phase.evaluate) return plan;
  for (const std::string& split : datasets.evaluation_splits(phase.data)) {
    check_evaluation(config, locations, network.model(), datasets.get(phase.data, split)->size());
  }
  at_location(location_of(config.source, {"best_metric"}), [&] {
    if (index + 1 == config.phases.size()) metric_of(data->info(), config.best_metric);
  });
  return plan;
}

}  // namespace

void check_tokens(const SettingLocations& locations, const Model& model, const MoEBlock& block,
                  const RouteOptions& rule, int64_t tokens) try {
  const int64_t experts = block.layer->options().num_experts;
  route(at::empty({tokens, experts}, at::device(at::kMeta)), rule);
} catch (const Error& error) {
  const SettingPaths paths = model.setting_paths();
  const bool has_rows = rule.is_expert_choice() && rule.given_rows() > 0;
  const std::string& rows = has_rows ? paths.rows_per_expert : paths.capacity_factor;
  const std::string place =
      SettingLocations::preferred({locations.find_in_model(paths.group_size, "batch_size"),
                                   locations.find_in_model(rows, "batch_size")});
  fail_usage("{}: {}", locations.at_place(place), error.what());
}

std::vector<PhasePlan> plan_phases(const RunConfig& config, const Model& model,
                                   DatasetCache& datasets, MissingFiles missing) {
  std::vector<PhasePlan> plans;
  PlannedModel network(model, initial_classes(config));
  for (size_t i = 0; i < config.phases.size(); ++i) {
    plans.push_back(plan_phase(config, i, network, datasets, missing));
  }
  return plans;
}

}  // namespace moesaic
