// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/data/source.h"
#include "moesaic/models/registry.h"
#include "moesaic/train/distill.h"

namespace moesaic {
namespace {

/// Leaves room within the 255 bytes of a name for what is added to that of a file being written.
constexpr size_t kMaxNameBytes = 200;

/// Returns what keeps a name from being a folder's.
ConfigProblem name_problem(const std::string& name) {
  if (name.size() > kMaxNameBytes) {
    return {fmt::format("name '{}' has {} bytes, more than {}", one_line(name), name.size(),
                        kMaxNameBytes),
            {"name"}};
  }
  if (is_portable_name(name)) return {};
  return {
      fmt::format("name '{}' may hold letters, digits, '-', '_' and '.', and not begin with '.'",
                  one_line(name)),
      {"name"}};
}

ConfigProblem length_problem(const PhaseConfig& config) {
  if (config.epochs && config.steps)
    return mutually_exclusive({"epochs", "null"}, {"steps", "null"});
  if (!config.epochs && !config.steps) {
    return {"'epochs' or 'steps' must be given", {"steps", "epochs"}};
  }
  return {};
}

/// Adds how `now` reads images to the phases of an older run, which does not say it: a default
/// could be another way than the run's, see keep_orientation().
void keep_images_as(const Json& now, Json& then) {
  for (size_t i = 0; now.contains("phases") && i < now.at("phases").size(); ++i) {
    const Json::json_pointer preprocess(fmt::format("/phases/{}/preprocess", i));
    if (!then.contains(preprocess) || !then.at(preprocess).is_object()) continue;
    for (const char* key : {"orientation", "channels"}) {
      if (!now.contains(preprocess / key)) continue;
      then.at(preprocess).emplace(key, Json(now.at(preprocess / key)));
    }
  }
}

/// Writes the intervals of a run that an older version stored as this one does.
void name_units(Json& run) {
  const auto every = run.is_object() ? run.find("evaluate_every") : run.end();
  if (every == run.end() || !every->is_number_integer() || *every == 0) return;
  *every = to_text(Interval::from_epochs(every->get<int64_t>()));
}

/// Writes the networks' settings, `keep` and `replace` within stored ones as this version does: a
/// former name is the present one, and a network's setting that a later version added has its
/// default.
void name_settings_within(Json& settings) {
  if (settings.is_array()) {
    for (Json& item : settings) name_settings_within(item);
  }
  if (!settings.is_object()) return;
  for (const auto& [key, part] : settings.items()) {
    if (key == "keep" && part.is_object() && part.contains("whole")) {
      part["exclude_blocks"] = part["whole"];
      part.erase("whole");
    }
    if (key == "replace" && part == kReplaceByNothing) part = nullptr;  // The former default.
    if (key != "model" || !part.is_object()) {
      name_settings_within(part);
      continue;
    }
    try {
      part = build_meta_model(Value::from_json(part, "stored settings"))->config();
    } catch (const Error&) {
      // Whoever uses the network says what is wrong with it.
    }
  }
}

}  // namespace

ConfigProblem config_problem(const PhaseConfig& config) {
  ConfigProblem reserved;
  if (config.name.starts_with("step_")) {
    reserved = {
        fmt::format("name '{}' is reserved for checkpoints of steps; do not begin it with 'step_'",
                    config.name),
        {"name"}};
  }
  return first_problem({name_problem(config.name), reserved, length_problem(config),
                        patterns_problem("trainable", config.trainable),
                        patterns_problem("frozen", config.frozen)});
}

ConfigProblem config_problem(const RunConfig& config) {
  if (config.model.is_null() && config.init.empty())
    return {"'model' or 'init' must be given", {"init", "model"}};
  std::map<std::string, size_t> names;
  for (size_t i = 0; i < config.phases.size(); ++i) {
    const auto [first, fresh] = names.emplace(config.phases[i].name, i);
    if (!fresh) {
      return {fmt::format("two phases are called '{}'", config.phases[i].name),
              {fmt::format("phases.{}.name", i), fmt::format("phases.{}.name", first->second)}};
    }
  }
  return name_problem(config.name);
}

void make_names_absolute(RunConfig& config) {
  config.init = absolute_path(config.init);
  const auto is_phase = [&](const std::string& name) {
    return std::ranges::find(config.phases, name, &PhaseConfig::name) != config.phases.end();
  };
  for (PhaseConfig& phase : config.phases) {
    phase.data = absolute_name(phase.data);
    std::string* const teacher = find_teacher(phase);
    if (teacher != nullptr && !is_phase(*teacher)) *teacher = absolute_path(*teacher);
    auto& prune = phase.on_entry.prune;
    if (prune && !is_phase(prune->pretrained)) prune->pretrained = absolute_path(prune->pretrained);
  }
}

Json with_absolute_names(Json started) {
  if (!started.is_object() || !started.contains("phases")) return started;
  if (started.value("init", Json()).is_string()) started["init"] = absolute_path(started["init"]);
  for (Json& phase : started.at("phases")) {
    if (!phase.is_object() || !phase.contains("data")) continue;
    if (phase.at("data").is_string()) phase["data"] = absolute_name(phase.at("data"));
  }
  return started;
}

Json settings_of_results(Json run) {
  name_units(run);
  run = with_current_settings<RunConfig>(run);
  for (const char* free :
       {"num_loader_threads", "checkpoint_every", "num_checkpoints", "activation_checkpointing",
        "starved_expert_share", "starved_expert_steps", "data_changed", "parallel"}) {
    if (run.is_object()) run.erase(free);
  }
  return run;
}

std::vector<Difference> setting_changes(Json before, Json now) {
  if (before == now) return {};
  name_settings_within(before);
  name_settings_within(now);
  return differences(before, now);
}

void check_same_run(const Json& started, const Json& now, const std::string& folder,
                    const std::string& suggestion) {
  Json then = started;
  keep_images_as(now, then);
  const std::vector<Difference> changed =
      setting_changes(settings_of_results(std::move(then)), settings_of_results(now));
  if (changed.empty()) return;
  fail_usage("{}: cannot resume with other settings: {}; set back what changed or {}", folder,
             describe(changed), suggestion);
}

}  // namespace moesaic
