// SPDX-License-Identifier: Apache-2.0
#include "check_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"

namespace moesaic {
namespace {

/// Letters between what was probably meant by a pattern and the nearest part of a parameter's name.
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

/// The three parameters whose names are nearest to a pattern that finds none.
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

/// `setting`: the list that holds them.
void check_list(const Model& model, const PhaseConfig& phase, const std::string& setting,
                const std::vector<std::string>& patterns) {
  const auto parameters = model.named_parameters();
  for (size_t i = 0; i < patterns.size(); ++i) {
    const Pattern pattern(patterns[i]);
    const bool found = std::any_of(parameters.begin(), parameters.end(),
                                   [&](const auto& item) { return pattern.found_in(item.key()); });
    if (found) continue;
    fail_usage("{}: phase '{}': {} has '{}', but no parameter is called so; the nearest are {}",
               place_of(phase.source, {fmt::format("{}.{}", setting, i)}), phase.name, setting,
               patterns[i], nearest_parameters(model, patterns[i]));
  }
}

void check_list(const Model& model, const PhaseConfig& phase, const std::string& setting,
                const std::vector<PatternValue>& values) {
  std::vector<std::string> patterns;
  for (const PatternValue& value : values) patterns.push_back(value.pattern);
  check_list(model, phase, setting, patterns);
}

}  // namespace

void check_patterns(const Model& model, const PhaseConfig& phase) {
  check_list(model, phase, "trains", phase.trains);
  check_list(model, phase, "frozen", phase.frozen);
  check_list(model, phase, "gradient_scale", phase.gradient_scale);
  check_list(model, phase, "optimizer.weight_decays", phase.optimizer.weight_decays);
  for (size_t i = 0; i < phase.optimizers.size(); ++i) {
    const PartOptimizerConfig& part = phase.optimizers[i];
    const std::string setting = fmt::format("optimizers.{}.", i);
    check_list(model, phase, setting + "parameters", part.parameters);
    check_list(model, phase, setting + "optimizer.weight_decays", part.optimizer.weight_decays);
  }
}

}  // namespace moesaic
