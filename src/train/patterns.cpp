// SPDX-License-Identifier: Apache-2.0
#include "patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"

namespace moesaic {
namespace {

/// Returns the edit distance of a pattern's likely text to the nearest part of a parameter's name.
size_t distance_to(const std::string& pattern, const std::string& name) {
  std::string letters = pattern;
  std::erase_if(letters, [](char c) { return c == '^' || c == '$' || c == '\\'; });
  size_t min = edit_distance(letters, name);
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    min = std::min(min, edit_distance(letters, name.substr(begin, end - begin)));
    begin = end + 1;
  }
  return min;
}

/// Returns the three parameters whose names are nearest to a pattern without a match.
std::string nearest_parameters(const Model& model, const std::string& pattern) {
  std::vector<std::pair<size_t, std::string>> names;
  for (const auto& item : model.named_parameters()) {
    names.emplace_back(distance_to(pattern, item.key()), item.key());
  }
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  names.resize(std::min<size_t>(names.size(), 3));
  std::string text;
  for (const auto& [unused, name] : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

template <class Item, class TextOf>
ConfigProblem problem_in(const std::string& key, const std::vector<Item>& items,
                         const std::string& below, const TextOf& text_of) {
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string problem = Pattern::problem(text_of(items[i]));
    if (!problem.empty()) {
      return {fmt::format("{}: {}", key, problem), {fmt::format("{}.{}{}", key, i, below)}};
    }
  }
  return {};
}

std::vector<std::string> texts_of(const std::vector<PatternValue>& values) {
  std::vector<std::string> texts;
  for (const PatternValue& item : values) texts.push_back(item.pattern);
  return texts;
}

}  // namespace

PatternValues::PatternValues(const std::vector<PatternValue>& values)
    : patterns_(texts_of(values)) {
  for (const PatternValue& item : values) values_.push_back(item.value);
}

double PatternValues::value_for(const std::string& name, double otherwise) const {
  const std::optional<size_t> first = patterns_.first_found_in(name);
  return first ? values_[*first] : otherwise;
}

ConfigProblem patterns_problem(const std::string& key, const std::vector<std::string>& patterns) {
  return problem_in(key, patterns, "", [](const std::string& pattern) { return pattern; });
}

ConfigProblem patterns_problem(const std::string& key, const std::vector<PatternValue>& values) {
  return problem_in(key, values, ".pattern", [](const PatternValue& item) { return item.pattern; });
}

void check_patterns(const Model& model, const PhasePlaces& places, const std::string& setting,
                    const std::vector<std::string>& patterns) {
  const auto parameters = model.named_parameters();
  for (size_t i = 0; i < patterns.size(); ++i) {
    const Pattern pattern(patterns[i]);
    const bool found = std::any_of(parameters.begin(), parameters.end(),
                                   [&](const auto& item) { return pattern.found_in(item.key()); });
    if (found) continue;
    fail_usage("{}: phase '{}': {} has '{}', but no parameter is called so; the nearest are {}",
               places.of({fmt::format("{}.{}", setting, i)}), places.phase().name, setting,
               patterns[i], nearest_parameters(model, patterns[i]));
  }
}

void check_patterns(const Model& model, const PhasePlaces& places, const std::string& setting,
                    const std::vector<PatternValue>& values) {
  check_patterns(model, places, setting, texts_of(values));
}

ConfigProblem first_problem(std::initializer_list<ConfigProblem> problems) {
  for (const ConfigProblem& problem : problems) {
    if (!problem.empty()) return problem;
  }
  return {};
}

}  // namespace moesaic
