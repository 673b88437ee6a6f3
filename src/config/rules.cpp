// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/config/value.h"

namespace moesaic {
namespace {

template <class T>
void take(std::optional<T>& mine, const std::optional<T>& other) {
  if (other) mine = other;
}

[[noreturn]] void refuse(double number, const Value& value, std::string_view name,
                         std::string_view wanted) {
  fail_usage("{}: '{}' must be {}, found {}", value.where(), name, wanted, number);
}

}  // namespace

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
  take(above, other.above);
  take(at_least, other.at_least);
  take(below, other.below);
  take(at_most, other.at_most);
  former_keys.insert(former_keys.end(), other.former_keys.begin(), other.former_keys.end());
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
  if (at_least && at_most && (number < *at_least || number > *at_most)) {
    refuse(number, value, name, fmt::format("between {} and {}", *at_least, *at_most));
  }
  if (above && !(number > *above)) refuse(number, value, name, fmt::format("above {}", *above));
  if (at_least && !(number >= *at_least)) {
    refuse(number, value, name, fmt::format("at least {}", *at_least));
  }
  if (below && !(number < *below)) refuse(number, value, name, fmt::format("below {}", *below));
  if (at_most && !(number <= *at_most)) {
    refuse(number, value, name, fmt::format("at most {}", *at_most));
  }
}

void Rules::check(const std::string& string, const Value& value, std::string_view name) const {
  check_not_empty(!string.empty(), value, name);
  if (choices.empty()) return;
  for (const std::string& choice : choices) {
    if (choice == string) return;
  }
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

}  // namespace moesaic
