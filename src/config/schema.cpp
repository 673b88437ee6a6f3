// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/schema.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/text.h"

namespace moesaic::config_detail {
namespace {

std::string in_path(const std::string& path) {
  return path.empty() ? path : " in " + path;
}

/// Returns how to turn off the settings that an argument excludes.
std::string remedy(const Value& object, const std::string& path, const ConfigProblem& problem) {
  if (problem.off.empty()) return "";
  std::vector<std::string> others;
  for (size_t i = 0; i < problem.off.size(); ++i) {
    if (is_argument(object, problem.blamed[i])) continue;
    others.push_back(join_path(path, problem.blamed[i]) + "=" + problem.off[i]);
  }
  if (others.size() + 1 != problem.off.size()) return "; leave one out";
  return fmt::format("; give {} too", fmt::join(others, " "));
}

}  // namespace

std::string join_path(std::string_view path, std::string_view name) {
  if (path.empty()) return std::string(name);
  return fmt::format("{}.{}", path, name);
}

void check_object(const Value& value, const std::string& path,
                  const std::vector<std::string>& keys) {
  const bool named = std::find(keys.begin(), keys.end(), "name") != keys.end();
  if (named && value.kind() == Value::Kind::string && !path.empty()) {
    fail_usage("{}: '{}' must be an object, found {}; did you mean {{\"name\": {}}} or {}.name={}?",
               value.where(), path, value.described(), value.to_json().dump(), path,
               value.as_string());
  }
  value.members(path);
}

void check_keys(const Value& object, const std::string& path,
                const std::vector<std::string>& known) {
  for (const Value::Member& member : object.members(path)) {
    if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
    fail_usage("{}: unknown key {}{}; {}", member.origin.text(), printable(member.key),
               in_path(path), did_you_mean(member.key, known));
  }
}

void fail_missing(const Value& object, const std::string& path, std::string_view name) {
  fail_usage("{}: missing key '{}'{}", object.where(), name, in_path(path));
}

void fail_problem(const Value& object, const std::string& path, const ConfigProblem& problem) {
  if (problem.blamed.empty()) {
    fail_usage("{}: {}{}", object.where(), problem.text, in_path(path));
  }
  const std::string place = place_of(object, problem.blamed);
  std::string setting = join_path(path, problem.blamed.front());
  if (setting.ends_with(':')) setting.pop_back();
  const bool named = path.empty() || place.find(setting) != std::string::npos;
  fail_usage("{}: {}{}{}", place, problem.text, named ? "" : fmt::format(" ({})", setting),
             remedy(object, path, problem));
}

std::string chosen_name(const Value& object, const std::string& path, std::string_view key,
                        const std::vector<std::string>& names) {
  const Value* value = object.find(key);
  if (value == nullptr) return names.front();
  const std::string name = join_path(path, key);
  one_of(names).check(value->as_string(name), *value, name);
  return value->as_string();
}

Sides read_sides(const Value& value, const std::string& path, const Rules& rules) {
  const bool pair = value.kind() == Value::Kind::array;
  if (pair && value.items().size() != 2) {
    fail_usage("{}: '{}' must be an integer or [height, width], found {}", value.where(), path,
               value.to_json().dump());
  }
  const auto side = [&](size_t i) {
    const Value& number = pair ? value.items()[i] : value;
    const int64_t length = number.as_int(path);
    rules.check(static_cast<double>(length), number, path);
    return length;
  };
  return {side(0), side(1)};
}

nlohmann::ordered_json write_sides(const Sides& sides) {
  if (sides.is_square()) return sides.height;
  return nlohmann::ordered_json::array({sides.height, sides.width});
}

nlohmann::ordered_json write_number(double number) {
  if (!std::isfinite(number)) fail_usage("a setting holds {}, which is no JSON number", number);
  return number;
}

}  // namespace moesaic::config_detail
