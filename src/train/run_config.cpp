// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "patterns.h"

namespace moesaic {
namespace {

// Checks that a name can be a folder name.
ConfigProblem name_problem(const std::string& name) {
  if (is_plain_name(name)) return {};
  return {
      fmt::format("name '{}' may hold letters, digits, '-', '_' and '.', and not begin with '.'",
                  one_line(name)),
      {"name"}};
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

// Returns the dotted path of the first difference of two documents, "" if they are equal.
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

ConfigProblem config_problem(const PhaseConfig& config) {
  ConfigProblem reserved;
  if (config.name.starts_with("step_")) {
    reserved = {fmt::format("name '{}' could be a checkpoint on the way; do not begin with 'step_'",
                            config.name),
                {"name"}};
  }
  return first_problem({name_problem(config.name), reserved, length_problem(config),
                        patterns_problem("trains", config.trains),
                        patterns_problem("frozen", config.frozen)});
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

}  // namespace moesaic
