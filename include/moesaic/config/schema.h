// SPDX-License-Identifier: Apache-2.0
#pragma once

// One declaration a setting. A configuration is a plain struct whose members hold the defaults, and
// beside it, in the same namespace,
//
//   template <class Fields> void describe(Fields& f, OptimizerConfig& c) {
//     f("name", c.name, "update rule", one_of({"sgd", "adamw"}));
//     f("lr", c.lr, "peak learning rate", above(0.0));
//     f("data", c.data, "data set to train on", required);
//   }
//
// Members are bool, int64_t, double, std::string, Sides, another described struct, Value (kept as
// it is for another parser), and std::vector<T>, std::optional<T>, std::map<std::string, T> of
// these. Where settings depend on one another, an optional `ConfigProblem config_problem(const
// OptimizerConfig&)` (or a plain std::string) returns what is wrong, or "". A struct with a further
// member `Value source` finds in it what it was read from, for place_of(). Settings whose struct a
// name decides are a Choice (config/choice.h).

#include <nlohmann/json.hpp>
#include <string>

#include "moesaic/config/choice.h"
#include "moesaic/config/detail/help.h"
#include "moesaic/config/detail/reader.h"
#include "moesaic/config/detail/writer.h"
#include "moesaic/config/problem.h"
#include "moesaic/config/rules.h"
#include "moesaic/config/sides.h"
#include "moesaic/config/value.h"

namespace moesaic {

/// Reads a config strictly: unknown and missing keys, wrong types and values out of range are
/// Error(usage) with the place, the full name and the nearest valid choice. `path` is what stands
/// before the names, e.g. "model".
template <class T>
T parse(const Value& value, const std::string& path = {}) {
  T config{};
  config_detail::read(value, path, Rules{}, config);
  return config;
}

/// All settings in the order of their declaration, defaults included: parse<T>(to_json(x)) equals
/// x.
template <class T>
nlohmann::ordered_json to_json(const T& config) {
  return config_detail::write(config);
}

/// A table with a line for each setting: key, type, default, allowed values, meaning.
template <class T>
std::string help_text() {
  std::vector<config_detail::HelpRow> rows;
  config_detail::add_help(std::string(), T{}, rows);
  return config_detail::format_help(rows);
}

}  // namespace moesaic
