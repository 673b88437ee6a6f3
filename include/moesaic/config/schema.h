// SPDX-License-Identifier: Apache-2.0
#pragma once

// One declaration per setting. A configuration is a plain struct whose members hold the defaults,
// and beside it, in the same namespace,
//
//   void describe(auto& f, OptimizerConfig& c) {
//     f("name", c.name, "name of the update rule", one_of({"sgd", "adamw"}));
//     f("lr", c.lr, "peak learning rate", above(0.0));
//     f("data", c.data, "dataset to train on", required, common);
//     f("max_norm", c.max_norm, "limit of the gradients' norm", renamed_from("clip"));
//   }
//
// Members are bool, int64_t, double, std::string, Size2d, Interval, another described struct, Value
// (kept unparsed for another parser), and std::vector<T>, std::optional<T>, std::map<std::string,
// T> of these. To check settings against one another, an optional `ConfigProblem
// config_problem(const OptimizerConfig&)` (or a plain std::string) returns what is wrong, or "". In
// a struct with a further member `Value source`, that member receives the value it was read from,
// for location_of(). Settings whose struct depends on a name are a NamedSettings
// (config/named_settings.h). A key of earlier versions, renamed_from(), is read as the present one,
// with a warning unless a program wrote it.

#include <string>
#include <vector>

#include "moesaic/config/fields.h"
#include "moesaic/config/named_settings.h"
#include "moesaic/config/rules.h"
#include "moesaic/config/value.h"

namespace moesaic {

/// Reads a configuration strictly. Throws Error (usage) with the position, the full name and the
/// nearest valid choice for unknown and missing keys, wrong types and values out of range. `path`
/// is the prefix of the names, e.g. "model".
template <class T>
T parse(const Value& value, const std::string& path = {}) {
  T config{};
  config_detail::read(value, path, Rules{}, config);
  return config;
}

/// Returns all settings in the order of their declaration, with defaults: parse<T>(to_json(x))
/// equals x.
Json to_json(const auto& config) {
  return config_detail::write(config);
}

using HelpRows = std::vector<config_detail::HelpRow>;

/// Returns all settings, in the order of their declaration. `path` is the prefix of the keys.
template <class T>
HelpRows help_rows(const std::string& path = {}) {
  HelpRows rows;
  config_detail::add_help(path, T{}, rows);
  return rows;
}

/// Returns the setting of this path, or all of a group: "seed", "phases.optimizer",
/// "phases.0.optimizer.lr". Throws Error (usage) with the nearest key, written in full, where there
/// is none.
HelpRows help_rows_at(const HelpRows& rows, const std::string& path);

/// Returns the settings that a key without its groups means: those whose path ends in `name` ("lr",
/// "optimizer.lr"), or did in earlier versions, and those known as `name` elsewhere. Without any,
/// and unless an outermost key is near, returns those whose last part begins with `name` or is
/// near. "batch" is "phases.N.batch_size".
HelpRows help_rows_matching(const HelpRows& rows, const std::string& name);

/// Returns text of at most 100 columns: type, default, allowed values and meaning of each setting.
std::string help_text(const HelpRows& rows);
/// Returns a line for each `common` setting, with its default and the start of its meaning.
std::string common_help(const HelpRows& rows);

}  // namespace moesaic
