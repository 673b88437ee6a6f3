// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/train/objective.h"

namespace moesaic {
namespace {

// Names become folders.
ConfigProblem name_problem(const std::string& name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.';
  });
  if (plain && name.front() != '.') return {};
  return {fmt::format(
              "name '{}' may hold letters, digits, '-', '_' and '.', and not begin with '.'", name),
          {"name"}};
}

ConfigProblem patterns_problem(const std::string& key, const std::vector<std::string>& patterns) {
  for (size_t i = 0; i < patterns.size(); ++i) {
    const std::string problem = Pattern::problem(patterns[i]);
    if (!problem.empty()) {
      return {fmt::format("{}: {}", key, problem), {fmt::format("{}.{}", key, i)}};
    }
  }
  return {};
}

ConfigProblem patterns_problem(const std::string& key, const std::vector<PatternValue>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string problem = Pattern::problem(values[i].pattern);
    if (!problem.empty()) {
      return {fmt::format("{}: {}", key, problem), {fmt::format("{}.{}.pattern", key, i)}};
    }
  }
  return {};
}

ConfigProblem aux_losses_problem(const std::map<std::string, double>& losses) {
  const std::vector<std::string> known = aux_loss_names();
  for (const auto& [name, weight] : losses) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return {fmt::format("aux_losses has no '{}'; {}", name, did_you_mean(name, known)),
              {"aux_losses." + name + ":"}};
    }
  }
  return {};
}

ConfigProblem length_problem(const PhaseConfig& config) {
  if (config.epochs && config.steps) {
    return excluding({"epochs", "null"}, {"steps", "null"});
  }
  if (!config.epochs && !config.steps) {
    return {"'epochs' or 'steps' must be given", {"steps", "epochs"}};
  }
  return {};
}

ConfigProblem update_problem(const PhaseConfig& config) {
  if (config.clip_norm > 0.0 && config.clip_value > 0.0) {
    return excluding({"clip_norm", "0"}, {"clip_value", "0"});
  }
  if (config.batch_size % config.accumulate != 0) {
    return {fmt::format("accumulate {} does not divide batch_size {}", config.accumulate,
                        config.batch_size),
            {"accumulate", "batch_size"}};
  }
  return {};
}

ConfigProblem first_problem(std::initializer_list<ConfigProblem> problems) {
  for (const ConfigProblem& problem : problems) {
    if (!problem.empty()) return problem;
  }
  return {};
}

std::vector<std::string> texts_of(const std::vector<PatternValue>& values) {
  std::vector<std::string> texts;
  for (const PatternValue& item : values) texts.push_back(item.pattern);
  return texts;
}

// Dotted path of the first place where two documents differ, "" if there is none.
std::string first_difference(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b,
                             const std::string& path) {
  const auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  const nlohmann::ordered_json absent;
  if (a.is_object() && b.is_object()) {
    for (const auto& [key, value] : a.items()) {
      if (!b.contains(key)) return below(key);
      if (auto found = first_difference(value, b.at(key), below(key)); !found.empty()) return found;
    }
    for (const auto& [key, value] : b.items()) {
      if (!a.contains(key)) return below(key);
    }
    return "";
  }
  if (a.is_array() && b.is_array()) {
    for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      const std::string place = below(std::to_string(i));
      if (i >= a.size() || i >= b.size()) return place;
      if (auto found = first_difference(a[i], b[i], place); !found.empty()) return found;
    }
    return "";
  }
  return a == b ? "" : path;
}

std::string at_path(const nlohmann::ordered_json& json, const std::string& path) {
  const nlohmann::ordered_json* place = &json;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    if (place->is_array()) {
      const size_t index = std::stoul(key);
      if (index >= place->size()) return "absent";
      place = &(*place)[index];
    } else {
      if (!place->contains(key)) return "absent";
      place = &place->at(key);
    }
    begin = end + 1;
  }
  return place->dump();
}

}  // namespace

ConfigProblem config_problem(const OptimizerConfig& config) {
  if (config.betas.size() != 2) return {"betas must hold two numbers", {"betas"}};
  if (config.weight_decay > 0.0 && !config.weight_decays.empty()) {
    return excluding({"weight_decay", "0"}, {"weight_decays", "[]"});
  }
  if (config.name == "adam" && (config.weight_decay > 0.0 || !config.weight_decays.empty())) {
    return {"'adam' has no weight decay; choose 'adamw'",
            {"name", "weight_decay", "weight_decays"}};
  }
  return first_problem({patterns_problem("no_decay", config.no_decay),
                        patterns_problem("weight_decays", config.weight_decays)});
}

ConfigProblem config_problem(const ScheduleConfig& config) {
  const bool falls = config.name == "cosine" || config.name == "linear";
  if (config.end > 0.0 && config.end_lr) {
    return excluding({"end", "0"}, {"end_lr", "null"});
  }
  if (!falls && (config.end > 0.0 || config.end_lr)) {
    return {fmt::format("'{}' has no end to fall to; choose cosine or linear", config.name),
            {"end_lr", "end", "name"}};
  }
  if (config.name != "rsqrt" && config.cooldown_steps > 0) {
    return {fmt::format("'{}' has no cooldown_steps; choose rsqrt", config.name),
            {"cooldown_steps", "name"}};
  }
  return {};
}

ConfigProblem config_problem(const PhaseConfig& config) {
  ConfigProblem reserved;
  if (config.name.starts_with("step_")) {
    reserved = {fmt::format("name '{}' could be a checkpoint on the way; do not begin with 'step_'",
                            config.name),
                {"name"}};
  }
  return first_problem({name_problem(config.name), reserved, length_problem(config),
                        patterns_problem("trains", config.trains),
                        patterns_problem("frozen", config.frozen),
                        patterns_problem("gradient_scale", config.gradient_scale),
                        update_problem(config), aux_losses_problem(config.aux_losses)});
}

ConfigProblem config_problem(const RunConfig& config) {
  if (config.model.is_null() && config.init.empty()) return {"'model' or 'init' must be given"};
  std::map<std::string, size_t> names;
  for (size_t i = 0; i < config.phases.size(); ++i) {
    const auto [first, fresh] = names.emplace(config.phases[i].name, i);
    if (!fresh) {
      return {fmt::format("two phases are '{}'", config.phases[i].name),
              {fmt::format("phases.{}.name", i), fmt::format("phases.{}.name", first->second)}};
    }
  }
  return name_problem(config.name);
}

void check_same_run(const nlohmann::ordered_json& started, const nlohmann::ordered_json& now,
                    const std::string& folder) {
  nlohmann::ordered_json then = started;
  for (const char* free : {"loader_threads", "checkpoint_every", "keep_checkpoints", "recompute"}) {
    if (then.contains(free) && now.contains(free)) then[free] = now.at(free);
  }
  const std::string place = first_difference(then, now, "");
  if (place.empty()) return;
  fail_usage(
      "{}: cannot resume, since '{}' was {} when the run began and is {} now; set it back "
      "or give another --out",
      folder, place, at_path(then, place), at_path(now, place));
}

PatternValues::PatternValues(const std::vector<PatternValue>& values)
    : patterns_(texts_of(values)) {
  for (const PatternValue& item : values) values_.push_back(item.value);
}

double PatternValues::value_for(const std::string& name, double otherwise) const {
  const std::optional<size_t> first = patterns_.first_found_in(name);
  return first ? values_[*first] : otherwise;
}

}  // namespace moesaic
