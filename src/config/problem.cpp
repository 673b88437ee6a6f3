// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "moesaic/base/text.h"

namespace moesaic {
namespace {

/// Returns the item of a list or the member of an object.
const Value* inner_of(const Value& config, std::string_view name) {
  if (config.kind() != Value::Kind::array) return config.find(name);
  const auto index = parsed_number<size_t>(name);
  return index && *index < config.items().size() ? &config.items()[*index] : nullptr;
}

std::optional<Origin> find_location(const Value& config, std::string_view path) {
  const bool key = path.ends_with(':');
  if (key) path.remove_suffix(1);
  if (const Value* inner = inner_of(config, path)) {
    if (!key || !config.is_object()) return inner->origin();
    return std::ranges::find(config.members(), path, &Value::Member::key)->origin;
  }
  const size_t dot = path.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const Value* inner = inner_of(config, path.substr(0, dot));
  if (inner == nullptr) return std::nullopt;
  return find_location(*inner, std::string(path.substr(dot + 1)) + (key ? ":" : ""));
}

bool from_command_line(const std::optional<Origin>& place) {
  return place && place->source != nullptr && place->line == 0;
}

void add_arguments(const Value& config, std::set<std::string>& found) {
  if (from_command_line(config.origin())) found.insert(config.where());
  if (config.kind() == Value::Kind::array) {
    for (const Value& item : config.items()) add_arguments(item, found);
  }
  if (!config.is_object()) return;
  for (const Value::Member& member : config.members()) add_arguments(member.value, found);
}

}  // namespace

ConfigProblem first_problem(std::initializer_list<ConfigProblem> problems) {
  for (const ConfigProblem& problem : problems) {
    if (!problem.empty()) return problem;
  }
  return {};
}

ConfigProblem mutually_exclusive(const OptionalSetting& first, const OptionalSetting& second) {
  ConfigProblem problem(fmt::format("'{}' and '{}' exclude one another", first.name, second.name),
                        {second.name, first.name});
  problem.off_values = {second.off, first.off};
  return problem;
}

bool is_argument(const Value& config, const std::string& path) {
  return from_command_line(find_location(config, path));
}

std::set<std::string> arguments_in(const Value& config) {
  std::set<std::string> found;
  add_arguments(config, found);
  return found;
}

std::string location_of(const Value& config, const std::vector<std::string>& offending) {
  std::optional<Origin> first;
  for (const std::string& path : offending) {
    const auto place = find_location(config, path);
    if (from_command_line(place)) return place->text();
    if (!first) first = place;
  }
  return first ? first->text() : config.where();
}

}  // namespace moesaic
