// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"

namespace moesaic {

void Rules::add(Flag flag) {
  is_required = is_required || flag == Flag::required;
  is_not_empty = is_not_empty || flag == Flag::not_empty;
  is_common = is_common || flag == Flag::common;
}

void Rules::add(const Rules& other) {
  is_required = is_required || other.is_required;
  is_not_empty = is_not_empty || other.is_not_empty;
  is_common = is_common || other.is_common;
  if (!other.choices.empty()) {
    choices = other.choices;
    choices_text = other.choices_text;
  }
  if (other.above) above = other.above;
  if (other.at_least) at_least = other.at_least;
  if (other.below) below = other.below;
  if (other.at_most) at_most = other.at_most;
  former_keys.insert(former_keys.end(), other.former_keys.begin(), other.former_keys.end());
  other_names.insert(other_names.end(), other.other_names.begin(), other.other_names.end());
}

std::string Rules::text() const {
  if (!choices_text.empty()) return choices_text;
  if (!choices.empty()) return fmt::format("{}", fmt::join(choices, " | "));
  if (at_least && at_most) return fmt::format("{} to {}", *at_least, *at_most);
  std::vector<std::string> parts;
  if (above) parts.push_back(fmt::format("above {}", *above));
  if (at_least) parts.push_back(fmt::format("at least {}", *at_least));
  if (below) parts.push_back(fmt::format("below {}", *below));
  if (at_most) parts.push_back(fmt::format("at most {}", *at_most));
  if (is_not_empty) parts.push_back("not empty");
  return fmt::format("{}", fmt::join(parts, ", "));
}

void Rules::check(double number, const Value& value, std::string_view name) const {
  const auto refuse = [&](const std::string& wanted) {
    fail_usage("{}: '{}' must be {}, found {}", value.where(), name, wanted, number);
  };
  if (at_least && at_most && (number < *at_least || number > *at_most)) {
    refuse(fmt::format("between {} and {}", *at_least, *at_most));
  }
  if (above && !(number > *above)) refuse(fmt::format("above {}", *above));
  if (at_least && !(number >= *at_least)) refuse(fmt::format("at least {}", *at_least));
  if (below && !(number < *below)) refuse(fmt::format("below {}", *below));
  if (at_most && !(number <= *at_most)) refuse(fmt::format("at most {}", *at_most));
}

void Rules::check(const std::string& string, const Value& value, std::string_view name) const {
  check_not_empty(!string.empty(), value, name);
  if (choices.empty() || std::ranges::find(choices, string) != choices.end()) return;
  fail_usage("{}: '{}' cannot be {}; {}", value.where(), name, value.described(),
             did_you_mean(string, choices));
}

void Rules::check_not_empty(bool is_filled, const Value& value, std::string_view name) const {
  if (is_not_empty && !is_filled) fail_usage("{}: '{}' must not be empty", value.where(), name);
}

Rules one_of(std::vector<std::string> choices, std::string text) {
  return {.choices = std::move(choices), .choices_text = std::move(text)};
}

Rules above(double limit) {
  return {.above = limit};
}

Rules at_least(double limit) {
  return {.at_least = limit};
}

Rules below(double limit) {
  return {.below = limit};
}

Rules at_most(double limit) {
  return {.at_most = limit};
}

Rules between(double low, double high) {
  return {.at_least = low, .at_most = high};
}

Rules renamed_from(std::string key) {
  return {.former_keys = {std::move(key)}};
}

Rules known_as(std::vector<std::string> names) {
  return {.other_names = std::move(names)};
}

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
