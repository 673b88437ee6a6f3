// SPDX-License-Identifier: Apache-2.0
// Patterns of parameters, and checks of a gradient phase before anything is trained.
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <ranges>

#include "moesaic/base/log.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/models/registry.h"
#include "moesaic/nn/image_network.h"
#include "moesaic/train/gradient_phase.h"
#include "moesaic/train/run_plan.h"

namespace moesaic {
namespace {

/// Returns the edit distance of a pattern's likely text to the nearest part of a parameter's name.
size_t distance_to(const std::string& pattern, const std::string& name) {
  std::string letters = pattern;
  std::erase_if(letters, [](char c) { return c == '^' || c == '$' || c == '\\'; });
  size_t min = edit_distance(letters, name);
  for (const std::string& part : split(name, '.')) {
    min = std::min(min, edit_distance(letters, part));
  }
  return min;
}

/// Returns the three parameters whose names are nearest to a pattern without a match.
std::string nearest_parameters(const Model& model, const std::string& pattern) {
  std::vector<std::pair<size_t, std::string>> names;
  for (const auto& item : model.named_parameters()) {
    names.emplace_back(distance_to(pattern, item.key()), item.key());
  }
  std::ranges::stable_sort(names, [](const auto& a, const auto& b) { return a.first < b.first; });
  names.resize(std::min<size_t>(names.size(), 3));
  return fmt::format("{}", fmt::join(names | std::views::values, ", "));
}

std::vector<std::string> texts_of(const std::vector<PatternValue>& values) {
  std::vector<std::string> texts;
  for (const PatternValue& item : values) texts.push_back(item.pattern);
  return texts;
}

ConfigProblem update_problem(const GradientConfig& config) {
  if (config.clip_norm > 0.0 && config.clip_value > 0.0) {
    return mutually_exclusive({"clip_norm", "0"}, {"clip_value", "0"});
  }
  if (config.batch_size % config.gradient_accumulation_steps != 0) {
    return {fmt::format("gradient_accumulation_steps {} does not divide batch_size {}; choose {}",
                        config.gradient_accumulation_steps, config.batch_size,
                        nearest_divisor(config.batch_size, config.gradient_accumulation_steps)),
            {"gradient_accumulation_steps", "batch_size"}};
  }
  return {};
}

/// Rejects augmentation of inputs that are not images.
void check_augment(const GradientConfig& config, const SettingLocations& locations,
                   const Dataset& data) {
  if (!data.has_images() && to_json(config.augment) != to_json(AugmentConfig())) {
    fail_usage(
        "{}: 'augment' needs images, but the inputs of '{}' are not images; leave 'augment' out",
        locations.at({"augment", "data"}), locations.phase().data);
  }
  at_location(locations.find({"augment.max_shift", "augment.shift", "augment"}),
              [&] { return ImageTransform(data.info(), config.augment); });
}

void check_samples(const GradientConfig& config, const SettingLocations& locations,
                   const Dataset& data) {
  if (config.num_samples == 0) return;
  const std::string& name = locations.phase().data;
  const std::string start = locations.at({"num_samples", "data"});
  const auto classes = static_cast<int64_t>(data.info().classes.size());
  if (!data.is_endless() && classes == 0) {
    fail_usage("{}: 'num_samples' needs classes, which '{}' does not have; leave it out", start,
               name);
  }
  if (config.num_samples < classes) {
    fail_usage("{0}: {1} cannot have all {2} classes of '{3}'; choose at least {2}", start,
               count_text(config.num_samples, "sample"), classes, name);
  }
  if (!data.is_endless() && config.num_samples > data.size()) {
    fail_usage("{0}: {1} samples are more than the {2} of '{3}'; choose at most {2}", start,
               config.num_samples, data.size(), name);
  }
}

/// Checks a schedule, the phase's or that of a part, whose settings begin with `setting`.
void check_schedule(const ScheduleConfig& schedule, double lr, const std::string& setting,
                    const SettingLocations& locations, int64_t steps) {
  if (steps == 0) return;
  if (schedule.cooldown_steps == 0) {
    if (schedule.warmup_steps <= steps) return;
    log_warning(
        "{}: {} warm-up steps are more than the phase's {}: of the learning rate {} the phase "
        "reaches {:.3g}",
        locations.at({setting + "warmup_steps", "steps", "epochs"}), schedule.warmup_steps, steps,
        lr, learning_rate(schedule, lr, steps - 1, steps));
    return;
  }
  if (schedule.warmup_steps + schedule.cooldown_steps <= steps) return;
  fail_usage("{}: {} warm-up and {} cooldown steps are more than the phase's {}; lower one of them",
             locations.at({setting + "cooldown_steps", setting + "warmup_steps"}),
             schedule.warmup_steps, schedule.cooldown_steps, steps);
}

void check_schedules(const GradientConfig& config, const SettingLocations& locations,
                     int64_t steps) {
  check_schedule(config.schedule, config.optimizer.lr, "schedule.", locations, steps);
  for (size_t i = 0; i < config.optimizers.size(); ++i) {
    const ParamGroupConfig& part = config.optimizers[i];
    if (!part.schedule) continue;
    const std::string setting = fmt::format("optimizers.{}.schedule.", i);
    check_schedule(*part.schedule, part.optimizer.lr, setting, locations, steps);
  }
}

/// Refuses what the network or the loss cannot do: learning rates by layer, mixed labels.
void check_abilities(const GradientConfig& config, const SettingLocations& locations,
                     const Model& model) {
  const auto check_decay = [&](const OptimizerConfig& optimizer, const std::string& setting) {
    const std::string any = model.named_parameters().begin()->key();
    if (optimizer.layer_decay == 1.0 || model.layers_after(any)) return;
    fail_usage("{}: the network's family does not number its layers; set {} to 1",
               locations.at({setting}), setting);
  };
  check_decay(config.optimizer, "optimizer.layer_decay");
  for (size_t i = 0; i < config.optimizers.size(); ++i) {
    check_decay(config.optimizers[i].optimizer,
                fmt::format("optimizers.{}.optimizer.layer_decay", i));
  }
  if (config.augment.mixup == 0.0 || objectives().at(config.loss.name()).takes_soft_labels) return;
  fail_usage("{}: loss '{}' takes no mixed labels; choose softmax, or set mixup to 0",
             locations.at({"augment.mixup", "loss"}), config.loss.name());
}

void check_all_patterns(const GradientConfig& config, const SettingLocations& locations,
                        const Model& model) {
  check_patterns(model, locations, "gradient_scale", texts_of(config.gradient_scale));
  check_patterns(model, locations, "optimizer.weight_decays",
                 texts_of(config.optimizer.weight_decays));
  for (size_t i = 0; i < config.optimizers.size(); ++i) {
    const ParamGroupConfig& part = config.optimizers[i];
    const std::string setting = fmt::format("optimizers.{}.", i);
    check_patterns(model, locations, setting + "parameters", part.parameters);
    check_patterns(model, locations, setting + "optimizer.weight_decays",
                   texts_of(part.optimizer.weight_decays));
  }
}

/// Everything about tokens that a step would find out; `batch` images go through the network at
/// once.
void check_batch_routing(const SettingLocations& locations, const Model& model, int64_t batch,
                         bool has_aux_losses) {
  const int64_t tokens = batch * model.tokens_per_image();
  for (const MoEBlock& block : model.moe_blocks()) {
    const RouteOptions& rule = block.layer->options().rule;
    const int64_t choices = std::max<int64_t>(1, rule.num_selected_experts());
    if (tokens > std::numeric_limits<int32_t>::max() / choices) {
      fail_usage(
          "{}: {} images of {} tokens that select {} experts exceed the 2^31 rows of a routing; "
          "choose at most {}",
          locations.at({"batch_size"}), batch, model.tokens_per_image(), choices,
          std::numeric_limits<int32_t>::max() / choices / model.tokens_per_image());
    }
    check_tokens(locations, model, block, rule, tokens);
    const int64_t group_size = rule.group_size;
    if (!has_aux_losses || group_size == 0 || tokens % group_size == 0) continue;
    fail_usage(
        "{}: group_size {} must divide the {} of a batch ({} of {}), since there are auxiliary "
        "losses; choose a batch_size that is a multiple of {}",
        locations.at_place(locations.find_in_model(model.setting_paths().group_size, "batch_size")),
        group_size, count_text(tokens, "token"), count_text(batch, "image"),
        model.tokens_per_image(), group_size / std::gcd(group_size, model.tokens_per_image()));
  }
}

/// Refuses micro-batches of one image in which a batch normalisation would see one value of a
/// channel. Larger ones have more.
void check_batch_norm(const SettingLocations& locations, const Model& model, int64_t batch,
                      int64_t num_micro_batches) {
  if (batch / num_micro_batches > 1) return;
  const std::shared_ptr<Model> shape = meta_copy(model);
  shape->train();
  const MetaKernels kernels;
  try {
    shape->forward(meta_inputs(*shape, 1));
  } catch (const nn::SingleValueError& error) {
    fail_usage("{}: {}: {} need two images or more",
               locations.at({num_micro_batches > 1 ? "gradient_accumulation_steps" : "batch_size",
                             "batch_size"}),
               error.what(), num_micro_batches > 1 ? "micro-batches" : "batches");
  } catch (const c10::Error&) {  // An operator has no shape function.
  } catch (const Error&) {       // What else is wrong with one image, others say.
  }
}

void plan_gradient(PhasePlan& plan, const SettingLocations& locations, const Model& model,
                   const Dataset& data) {
  const PhaseConfig& phase = plan.config;
  const auto& config = settings_of<GradientConfig>(phase);
  check_augment(config, locations, data);
  const ObjectiveKind& objective = objectives().at(config.loss.name());
  objective.check(config.loss, locations, model, data.info());
  check_abilities(config, locations, model);
  check_all_patterns(config, locations, model);
  if (config.num_samples > 0) plan.num_images = config.num_samples;
  check_samples(config, locations, data);
  const int64_t rest = config.drop_last ? 0 : plan.num_images % config.batch_size;
  plan.steps_per_epoch =
      std::max<int64_t>(1, plan.num_images / config.batch_size + (rest > 0 ? 1 : 0));
  plan.steps = phase.steps ? *phase.steps : *phase.epochs * plan.steps_per_epoch;
  check_schedules(config, locations, plan.steps);
  plan.batch_size = std::min(config.batch_size, plan.num_images);
  if (plan.batch_size % config.gradient_accumulation_steps != 0) {
    fail_usage(
        "{}: gradient_accumulation_steps {} does not divide a batch of all {}, which are fewer "
        "than batch_size {}; choose a batch_size of at most {} that it divides",
        locations.at({"gradient_accumulation_steps"}), config.gradient_accumulation_steps,
        count_text(plan.batch_size, "example"), config.batch_size, plan.batch_size);
  }
  if (plan.steps == 0) return;
  if (plan.batch_size < config.batch_size) {
    log_warning("{}: batch_size {} is more than '{}' has, a batch is all {}",
                locations.at({"batch_size"}), config.batch_size, phase.data,
                count_text(plan.batch_size, "example"));
  }
  const Json settings = to_json(config);
  const auto weights = settings.value("aux_losses", std::map<std::string, double>{});
  check_batch_routing(locations, model, plan.batch_size / config.gradient_accumulation_steps,
                      !aux_loss_weights(weights, model).empty());
  check_batch_norm(locations, model, plan.batch_size, config.gradient_accumulation_steps);
  if (rest == 0) return;
  check_batch_routing(locations, model, rest, !aux_loss_weights(weights, model).empty());
  check_batch_norm(locations, model, rest, 1);
}

StepMemory gradient_memory(const PhaseConfig& phase, const Model& model) {
  const auto& config = settings_of<GradientConfig>(phase);
  StepMemory memory{.num_micro_batches = config.gradient_accumulation_steps};
  const Patterns trains(phase.trainable);
  Optimizer::NamedParameters trained;
  for (const auto& item : model.named_parameters()) {
    if (!trains.any_matches(item.key())) continue;
    trained.emplace_back(item.key(), item.value());
    memory.gradients += static_cast<double>(item.value().nbytes());
  }
  const Optimizer optimizer(trained, config.optimizer, phase.frozen, config.optimizers);
  memory.optimizer = 4.0 * static_cast<double>(optimizer.max_state_shard().state);
  if (config.ema_decay > 0.0) memory.optimizer += memory.gradients;  // As many numbers.
  memory.update_rules = config.optimizer.name;
  for (const ParamGroupConfig& part : config.optimizers) {
    memory.update_rules += ", " + part.optimizer.name;
  }
  return memory;
}

void check_processes_can_share(const PhasePlan& plan, const SettingLocations& locations,
                               int64_t processes) {
  check_batch_divisible(
      locations.at({"batch_size", "gradient_accumulation_steps"}) + ": ", plan.batch_size,
      settings_of<GradientConfig>(plan.config).gradient_accumulation_steps, processes);
}

}  // namespace

PatternValues::PatternValues(const std::vector<PatternValue>& values)
    : patterns_(texts_of(values)) {
  for (const PatternValue& item : values) values_.push_back(item.value);
}

double PatternValues::value_for(const std::string& name, double otherwise) const {
  const std::optional<size_t> first = patterns_.first_match(name);
  return first ? values_[*first] : otherwise;
}

ConfigProblem patterns_problem(const std::string& key, const std::vector<std::string>& patterns,
                               const std::string& below) {
  for (size_t i = 0; i < patterns.size(); ++i) {
    const std::string problem = Pattern::problem(patterns[i]);
    if (!problem.empty()) {
      return {fmt::format("{}: {}", key, problem), {fmt::format("{}.{}{}", key, i, below)}};
    }
  }
  return {};
}

void check_patterns(const Model& model, const SettingLocations& locations,
                    const std::string& setting, const std::vector<std::string>& patterns) {
  const auto parameters = model.named_parameters();
  for (size_t i = 0; i < patterns.size(); ++i) {
    const Pattern pattern(patterns[i]);
    const bool found = std::any_of(parameters.begin(), parameters.end(),
                                   [&](const auto& item) { return pattern.matches(item.key()); });
    if (found) continue;
    fail_usage("{}: {} has '{}', which matches no parameter; the nearest are {}",
               locations.at({fmt::format("{}.{}", setting, i)}), setting, patterns[i],
               nearest_parameters(model, patterns[i]));
  }
}

ConfigProblem config_problem(const OptimizerConfig& config) {
  if (config.expert_norm != "joint" && config.name != "normalized_sgd") {
    return {fmt::format("'{}' has no expert_norm; choose normalized_sgd", config.name),
            {"expert_norm", "name"}};
  }
  if (config.betas.size() != 2) return {"betas must hold two numbers", {"betas"}};
  if (config.weight_decay > 0.0 && !config.weight_decays.empty()) {
    return mutually_exclusive({"weight_decay", "0"}, {"weight_decays", "[]"});
  }
  if (config.name == "adam" && (config.weight_decay > 0.0 || !config.weight_decays.empty())) {
    return {"'adam' has no weight decay; choose 'adamw'",
            {"name", "weight_decay", "weight_decays"}};
  }
  return first_problem(
      {patterns_problem("no_decay", config.no_decay),
       patterns_problem("weight_decays", texts_of(config.weight_decays), ".pattern")});
}

ConfigProblem config_problem(const ParamGroupConfig& config) {
  return patterns_problem("parameters", config.parameters);
}

ConfigProblem config_problem(const ScheduleConfig& config) {
  const bool falls = config.name == "cosine" || config.name == "linear";
  if (config.end > 0.0 && config.end_lr)
    return mutually_exclusive({"end", "0"}, {"end_lr", "null"});
  if (!falls && (config.end > 0.0 || config.end_lr)) {
    return {fmt::format("'{}' has no end value; choose cosine or linear", config.name),
            {"end_lr", "end", "name"}};
  }
  if (config.name != "rsqrt" && config.cooldown_steps > 0) {
    return {fmt::format("'{}' has no cooldown_steps; choose rsqrt", config.name),
            {"cooldown_steps", "name"}};
  }
  if (config.name != "cosine" && config.period) {
    return {fmt::format("'{}' has no period; choose cosine", config.name), {"period", "name"}};
  }
  return {};
}

ConfigProblem config_problem(const GradientConfig& config) {
  if (!config.drop_last && config.gradient_accumulation_steps > 1) {
    return {
        "a smaller last batch cannot be divided into micro-batches: set drop_last to true, or "
        "gradient_accumulation_steps to 1",
        {"drop_last", "gradient_accumulation_steps"}};
  }
  return first_problem(
      {patterns_problem("gradient_scale", texts_of(config.gradient_scale), ".pattern"),
       update_problem(config)});
}

PhaseKind gradient_phase_kind() {
  const auto make = [](const PhasePlan& plan, PhaseContext context) -> std::unique_ptr<Phase> {
    return std::make_unique<GradientPhase>(plan, std::move(context));
  };
  const auto objective = [](const PhaseConfig& phase) {
    return settings_of<GradientConfig>(phase).loss.name();
  };
  return {.settings = NamedSettings("gradient", GradientConfig{}),
          .description =
              "steps of an optimizer on batches, by the gradients of a loss, for any network",
          .plan = plan_gradient,
          .make = make,
          .memory = gradient_memory,
          .objective = objective,
          .check_processes = check_processes_can_share,
          .overlaps_save = true};
}

}  // namespace moesaic
