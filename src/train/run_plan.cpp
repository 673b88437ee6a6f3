// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "check_patterns.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"
#include "moesaic/data/loader.h"
#include "moesaic/models/registry.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/prune/keep_spec.h"
#include "moesaic/prune/plan.h"
#include "moesaic/train/evaluate.h"
#include "moesaic/train/main_loss.h"
#include "moesaic/train/memory.h"
#include "moesaic/train/objective.h"
#include "moesaic/train/optimizer.h"
#include "moesaic/train/schedule.h"

namespace moesaic {
namespace {

/// Does `action`; a usage error of it also says where the setting was written.
template <class F>
auto at_place(const std::string& place, F&& action) {
  try {
    return action();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    fail_usage("{}: {}", place, error.what());
  }
}

/// Of settings that do not fit together, the one given on the command line changed last.
std::string blame(const std::vector<std::string>& places) {
  for (const std::string& place : places) {
    if (place.starts_with("argument '")) return place;
  }
  return places.front();
}

/// Where a setting of the model stands; where the model is one of a checkpoint, that of the phase.
std::string place_in_model(const RunConfig& config, const std::string& setting,
                           const PhaseConfig& phase, const std::string& otherwise) {
  const std::string in_phase = place_of(phase.source, {otherwise});
  if (!config.model.is_object() || setting.empty()) return in_phase;
  return blame({place_of(config.model, {setting}), in_phase});
}

/// What the phases make of the network, as far as it can be known before training: how many experts
/// stay, but not which ones.
class Rehearsal {
 public:
  Rehearsal(const RunConfig& config, const Model& model) : model_(&model) {
    const bool needed = std::any_of(
        config.phases.begin(), config.phases.end(),
        [](const PhaseConfig& phase) { return phase.on_entry.prune || phase.on_entry.new_head; });
    if (!needed) return;
    copy_ = build_model_shape(Value::from_json(model.config(), "model"));
    model_ = copy_.get();
  }

  const Model& model() const { return *model_; }

  void prune(const KeepSpec& keep) {
    if (!names_unknown_experts(keep)) check_keep(*model_, keep);
    for (const MoEBlock& block : copy_->moe_blocks()) {
      const KeepRule* rule = keep.rule_of(block.block);
      if (rule != nullptr) prune(block, *rule);
    }
  }

  void reset_head(int64_t classes) { give_head(*copy_, classes); }

 private:
  void prune(const MoEBlock& block, const KeepRule& rule) {
    std::vector<int64_t> ids = block.layer->kept();
    const auto count = static_cast<size_t>(rule.count(block.layer->options().experts));
    if (rule.ids() != nullptr && !guessed_.contains(block.block)) {
      ids = *rule.ids();
    } else if (count < ids.size()) {
      ids.resize(count);
      guessed_.insert(block.block);
    }
    nn::MoELayer layer = block.layer;  // a handle; that of a const block gives no other access
    layer->keep_experts(ids);
  }

  bool names_unknown_experts(const KeepSpec& keep) const {
    return std::any_of(guessed_.begin(), guessed_.end(), [&](int64_t block) {
      const KeepRule* rule = keep.rule_of(block);
      return rule != nullptr && rule->ids() != nullptr;
    });
  }

  std::shared_ptr<Model> copy_;
  const Model* model_;
  std::set<int64_t> guessed_;  ///< blocks that scores have pruned
};

void check_images(const RunConfig& config, const PhaseConfig& phase, const Model& model,
                  const DatasetInfo& data) {
  const std::vector<int64_t> shape = {data.channels, data.height, data.width};
  if (model.input_shape() == shape) return;
  const std::vector<int64_t> wanted = model.input_shape();
  const SettingPaths paths = model.setting_paths();
  const std::string& setting = shape[0] == wanted[0] ? paths.image_size : paths.channels;
  fail_usage(
      "{}: phase '{}': '{}' has images of {} x {} x {} (channels, height, width), the model "
      "takes {} x {} x {}",
      place_in_model(config, setting, phase, "data"), phase.name, phase.data, shape[0], shape[1],
      shape[2], wanted[0], wanted[1], wanted[2]);
}

int64_t trained_numbers(const Model& model, const PhaseConfig& phase) {
  check_patterns(model, phase);
  const Patterns trains(phase.trains), frozen(phase.frozen);
  int64_t count = 0;
  for (const auto& item : model.named_parameters()) {
    const bool moves = trains.any_found_in(item.key()) && !frozen.any_found_in(item.key());
    if (moves) count += item.value().numel();
  }
  return count;
}

/// An auxiliary loss that would be 0 whatever the network does.
void check_aux_losses(const RunConfig& config, const PhaseConfig& phase, const Model& model) {
  const SettingPaths paths = model.setting_paths();
  for (const auto& [name, weight] : phase.aux_losses) {
    const std::string key = "aux_losses." + name;
    for (const MoEBlock& block : model.moe_blocks()) {
      const nn::RouterOptions& options = block.layer->options();
      if (name != "router_z" && nn::choices_of_token(options.rule) == 0) {
        fail_usage(
            "{}: phase '{}': {} balances tokens that choose, but here {}; leave it out or choose "
            "router_z",
            blame({place_of(phase.source, {key + ":"}),
                   place_in_model(config, paths.router_name, phase, key + ":")}),
            phase.name, key,
            std::holds_alternative<ExpertChoiceOptions>(options.rule)
                ? "experts choose and are balanced"
                : "a threshold does");
      }
      const bool gaussian = options.noise.kind == NoiseKind::gaussian;
      if (name == "load" && !gaussian) {
        fail_usage(
            "{}: phase '{}': {} needs gaussian noise, but the router's noise is uniform; set "
            "{} to 'gaussian' or choose importance",
            blame({place_of(phase.source, {key + ":"}),
                   place_in_model(config, paths.router_noise_kind, phase, key + ":")}),
            phase.name, key, paths.router_noise_kind.empty() ? "it" : paths.router_noise_kind);
      }
      if (name == "load" && options.noise.scale == 0.0) {
        fail_usage(
            "{}: phase '{}': {} needs noise, but {} is 0 or the router's noise is never; "
            "set it (to 1, for instance) or choose importance",
            blame({place_of(phase.source, {key + ":"}),
                   place_in_model(config, paths.router_noise, phase, key + ":")}),
            phase.name, key, paths.router_noise.empty() ? "its scale" : paths.router_noise);
      }
    }
  }
}

void check_losses(const RunConfig& config, const PhaseConfig& phase, const Model& model) {
  check_aux_losses(config, phase, model);
  const bool ensemble = model.members() > 1;
  if (ensemble == is_ensemble_loss(phase.loss)) return;
  const std::string setting = model.setting_paths().members;
  const std::string place =
      blame({place_of(phase.source, {"loss"}), place_in_model(config, setting, phase, "loss")});
  if (ensemble) {
    fail_usage(
        "{}: phase '{}': loss '{}' is for one network, the model is an ensemble of {}; choose '{}'",
        place, phase.name, phase.loss, model.members(), with_members(phase.loss));
  }
  fail_usage(
      "{}: phase '{}': loss '{}' is for the members of an ensemble, the model is one network"
      "{}; choose '{}'",
      place, phase.name, phase.loss, setting.empty() ? "" : fmt::format(" ({} 1)", setting),
      of_one_network(phase.loss));
}

void check_schedule(const PhaseConfig& phase, int64_t steps) {
  const ScheduleConfig& schedule = phase.schedule;
  if (steps == 0) return;
  if (schedule.cooldown_steps == 0) {
    if (schedule.warmup_steps <= steps) return;
    log_warning(
        "{}: phase '{}': {} warm-up steps are more than the phase's {}: of the learning rate {} it "
        "reaches {:.3g}",
        place_of(phase.source, {"schedule.warmup_steps", "steps", "epochs"}), phase.name,
        schedule.warmup_steps, steps, phase.optimizer.lr,
        learning_rate(schedule, phase.optimizer.lr, steps - 1, steps));
    return;
  }
  if (schedule.warmup_steps + schedule.cooldown_steps <= steps) return;
  fail_usage("{}: phase '{}': {} warm-up and {} cooldown steps are more than the phase's {}",
             place_of(phase.source, {"schedule.cooldown_steps", "schedule.warmup_steps"}),
             phase.name, schedule.warmup_steps, schedule.cooldown_steps, steps);
}

/// `index`: of the phase.
void check_pretrained(const RunConfig& config, size_t index) {
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
    fail_usage("{}: phase '{}': prune.pretrained '{}' is neither an earlier phase nor a folder; {}",
               place, phase.name, prune.pretrained, did_you_mean(prune.pretrained, earlier));
  }
  at_place(place, [&] { return resolve_checkpoint(prune.pretrained); });
}

bool choosing_rows(const nn::RoutingRule& rule) {
  const auto* options = std::get_if<ExpertChoiceOptions>(&rule);
  return options != nullptr && options->rows > 0;
}

/// Routes so many tokens without numbers: whatever the router refuses in training, it refuses here.
void check_tokens(const RunConfig& config, const PhaseConfig& phase, const SettingPaths& paths,
                  const MoEBlock& block, int64_t tokens) {
  const nn::RouterOptions& options = block.layer->options();
  try {
    nn::route(at::empty({tokens, options.experts}, at::device(at::kMeta)), options.rule);
  } catch (const Error& error) {
    const auto place = [&](const std::string& setting) {
      return place_in_model(config, setting, phase, "batch_size");
    };
    const std::string rows =
        choosing_rows(options.rule) ? place(paths.rows_per_expert) : place(paths.capacity_factor);
    fail_usage("{}: phase '{}': {}", blame({place(paths.group_size), rows}), phase.name,
               error.what());
  }
}

/// The batches of an evaluation; the last one may be smaller.
void check_evaluation(const RunConfig& config, const PhaseConfig& phase, const Model& model,
                      int64_t images) {
  const SettingPaths paths = model.setting_paths();
  const int64_t batch = std::min(config.evaluate_batch_size, images);
  for (const MoEBlock& block : model.moe_blocks()) {
    for (const int64_t images : {batch, images % batch}) {
      if (images > 0) check_tokens(config, phase, paths, block, images * model.tokens_per_image());
    }
  }
}

/// Everything about tokens that a step would find out.
void check_routing(const RunConfig& config, const PhaseConfig& phase, const Model& model,
                   int64_t batch) {
  const SettingPaths paths = model.setting_paths();
  const int64_t tokens = batch * model.tokens_per_image();
  for (const MoEBlock& block : model.moe_blocks()) {
    const nn::RoutingRule& rule = block.layer->options().rule;
    const int64_t choices = std::max<int64_t>(1, nn::choices_of_token(rule));
    if (tokens > std::numeric_limits<int32_t>::max() / choices) {
      fail_usage(
          "{}: phase '{}': {} images of {} tokens that select {} experts are more rows "
          "than the 2^31 of a routing",
          place_of(phase.source, {"batch_size"}), phase.name, batch, model.tokens_per_image(),
          choices);
    }
    const std::string place = place_in_model(config, paths.group_size, phase, "batch_size");
    check_tokens(config, phase, paths, block, tokens);
    const int64_t group_size = nn::group_size(rule);
    if (aux_loss_weights(phase.aux_losses, model).empty() || group_size == 0 ||
        tokens % group_size == 0)
      continue;
    fail_usage(
        "{}: phase '{}': group_size {} must divide the {} tokens of a batch ({} images of "
        "{}), since there are auxiliary losses",
        place, phase.name, group_size, tokens, batch, model.tokens_per_image());
  }
}

void check_classes(const RunConfig& config, size_t index, const Model& model, int64_t found) {
  const PhaseConfig& phase = config.phases[index];
  if (phase.on_entry.new_head || model.classes() == found) return;
  const std::string place =
      index == 0 ? place_in_model(config, model.setting_paths().classes, phase, "data")
                 : place_of(phase.source, {"data"});
  fail_usage(
      "{}: phase '{}': '{}' has {} classes, the model has {}; set \"on_entry\": "
      "{{\"new_head\": true}} or the model's classes",
      place, phase.name, phase.data, found, model.classes());
}

std::shared_ptr<const Dataset> open_data(const PhaseConfig& phase, Datasets& datasets) {
  const std::shared_ptr<const Dataset> data = at_place(place_of(phase.source, {"data"}), [&] {
    if (phase.evaluate) datasets.get(phase.data, "test");
    return datasets.get(phase.data, "train");
  });
  return at_place(place_of(phase.source, {"preprocess", "data"}),
                  [&] { return preprocessed(data, phase.preprocess); });
}

/// Inputs that are no images cannot be changed as images are.
void check_augment(const PhaseConfig& phase, const Dataset& data) {
  if (data.has_images() || to_json(phase.augment) == to_json(AugmentConfig())) return;
  fail_usage(
      "{}: phase '{}': '{}' has inputs that are no images: nothing of 'augment' can be "
      "done to them",
      place_of(phase.source, {"augment", "data"}), phase.name, phase.data);
}

PhasePlan plan_phase(const RunConfig& config, size_t index, Rehearsal& rehearsal,
                     Datasets& datasets) {
  const PhaseConfig& phase = config.phases[index];
  const std::shared_ptr<const Dataset> data = open_data(phase, datasets);
  check_images(config, phase, rehearsal.model(), data->info());
  check_augment(phase, *data);
  at_place(place_of(phase.source, {"augment.shift", "augment"}),
           [&] { return ImageTransform(data->info(), phase.augment); });
  const auto classes = static_cast<int64_t>(data->info().classes.size());
  check_classes(config, index, rehearsal.model(), classes);
  if (phase.on_entry.prune) {
    check_pretrained(config, index);
    rehearsal.prune(KeepSpec::from_value(phase.on_entry.prune->keep));
  }
  if (phase.on_entry.new_head) rehearsal.reset_head(classes);
  const Model& model = rehearsal.model();
  check_losses(config, phase, model);
  PhasePlan plan;
  plan.config = phase;
  plan.precision = config.precision;
  plan.recompute = config.recompute;
  plan.classes = classes;
  plan.images = data->size();
  plan.trained = trained_numbers(model, phase);
  plan.batches_per_epoch = std::max<int64_t>(1, data->size() / phase.batch_size);
  plan.steps = phase.steps ? *phase.steps : *phase.epochs * plan.batches_per_epoch;
  check_schedule(phase, plan.steps);
  const int64_t batch = std::min(phase.batch_size, data->size());
  if (batch % phase.accumulate != 0) {
    fail_usage("{}: phase '{}': accumulate {} does not divide a batch of all {} images",
               place_of(phase.source, {"accumulate"}), phase.name, phase.accumulate, batch);
  }
  if (plan.steps > 0) check_routing(config, phase, model, batch / phase.accumulate);
  if (phase.evaluate) {
    check_evaluation(config, phase, model, datasets.get(phase.data, "test")->size());
  }
  return plan;
}

std::shared_ptr<Model> shape_of_init(const RunConfig& config) {
  const std::filesystem::path file = resolve_checkpoint(config.init) / "config.json";
  return build_model_shape(Document::from_file(file).root().at("model"));
}

void take_weights(const RunConfig& config, const Model& source, Model& model) {
  model.initialise_from(source, config.phases.front().on_entry.new_head, config.init);
}

/// Bytes of the tensors of a phase that trains all parameters. Which optimizer moves how many of
/// them takes a network to be known.
double optimizers_need(const RunConfig& config, const PhaseConfig& phase, double numbers) {
  if (!phase.optimizers.empty()) return optimizer_bytes(*build_model_shape(config.model), phase);
  const auto slots = static_cast<double>(make_update_rule(phase.optimizer)->slot_names().size());
  return slots * numbers * sizeof(float);
}

/// Weights, their gradients and the optimizers' tensors, where a phase trains them all; what a step
/// needs besides is not known.
void check_training_memory(const RunConfig& config) {
  const double numbers = count_parameters(config.model);
  for (const PhaseConfig& phase : config.phases) {
    if (phase.steps.value_or(1) == 0 || phase.trains != PhaseConfig().trains) continue;
    const double weights_and_gradients = 2.0 * numbers * sizeof(float);
    std::string names = phase.optimizer.name;
    for (const PartOptimizerConfig& part : phase.optimizers) names += ", " + part.optimizer.name;
    check_memory(weights_and_gradients + optimizers_need(config, phase, numbers),
                 fmt::format("training a model of {:.4g} parameters by {}", numbers, names),
                 config.model.where());
  }
}

}  // namespace

std::vector<PhasePlan> plan_phases(const RunConfig& config, const Model& model,
                                   Datasets& datasets) {
  std::vector<PhasePlan> plans;
  Rehearsal rehearsal(config, model);
  for (size_t i = 0; i < config.phases.size(); ++i) {
    plans.push_back(plan_phase(config, i, rehearsal, datasets));
  }
  return plans;
}

std::string describe_run(const RunConfig& config, const Model& model,
                         const std::vector<PhasePlan>& phases) {
  std::string text =
      fmt::format("run           {}\nmodel         {}\nparameters    {}\n", config.name,
                  model.config().at("name").get<std::string>(), model.parameter_count());
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

std::shared_ptr<Model> build_initial_shape(const RunConfig& config) {
  return config.model.is_null() ? shape_of_init(config) : build_model_shape(config.model);
}

std::shared_ptr<Model> build_initial_model(const RunConfig& config) {
  if (config.model.is_null()) return load_model(config.init);
  check_training_memory(config);
  return build_model(config.model, static_cast<uint64_t>(config.seed));
}

void check_init(const RunConfig& config) {
  if (config.init.empty()) return;
  const std::string place = place_of(config.source, {"init"});
  if (!path_exists(config.init)) {
    fail_usage("{}: init '{}' is not there{}; make it first, or give init=RUN_OR_CHECKPOINT", place,
               config.init, nearest_sibling(config.init));
  }
  at_place(place, [&] { return resolve_checkpoint(config.init); });
}

void check_initial_weights(const RunConfig& config) {
  if (config.init.empty()) return;
  verify_checkpoint(resolve_checkpoint(config.init));
  take_weights(config, *shape_of_init(config), *build_initial_shape(config));
}

void load_initial_weights(const RunConfig& config, Model& model) {
  if (!config.init.empty()) take_weights(config, *load_model(config.init), model);
}

}  // namespace moesaic
