// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/problem.h"

#include <fmt/format.h>

#include <optional>

#include "moesaic/base/text.h"

namespace moesaic {
namespace {

const Value* item_of(const Value& list, std::string_view name) {
  const auto index = parsed_number<size_t>(name);
  return index && *index < list.items().size() ? &list.items()[*index] : nullptr;
}

const Value::Member* member_of(const Value& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  for (const Value::Member& member : object.members()) {
    if (member.key == name) return &member;
  }
  return nullptr;
}

std::optional<Origin> find_location(const Value& config, std::string_view path) {
  const bool key = path.ends_with(':');
  if (key) path.remove_suffix(1);
  if (const Value::Member* member = member_of(config, path)) {
    return key ? member->origin : member->value.origin();
  }
  if (config.kind() == Value::Kind::array) {
    if (const Value* item = item_of(config, path)) return item->origin();
  }
  const size_t dot = path.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const Value* inner = config.kind() == Value::Kind::array ? item_of(config, path.substr(0, dot))
                                                           : config.find(path.substr(0, dot));
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

ConfigProblem excluding(const OptionalSetting& first, const OptionalSetting& second) {
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
