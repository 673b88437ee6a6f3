// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <any>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/registry.h"
#include "moesaic/config/fields.h"

namespace moesaic {

/// A named alternative together with its settings: a described struct whose type the name decides.
/// Copying is deep. Within describe(), with `c.kind` a NamedSettings,
///
///     f.choice("kind", c.kind, choices, "what a step of the phase does");
///
/// reads and writes the key "kind" and, beside it in the same object, the settings of the struct
/// that `choices` (a std::vector<NamedSettings>, the first of which is the default) has under that
/// name.
class NamedSettings {
 public:
  NamedSettings() = default;
  /// `settings` holds the default values.
  template <class T>
  NamedSettings(std::string name, T settings)
      : name_(std::move(name)),
        content_(std::move(settings)),
        visit_([](std::any& content, Fields fields) {
          std::visit([&](auto* of) { describe(*of, std::any_cast<T&>(content)); }, fields);
        }),
        problem_([](std::any& content, [[maybe_unused]] const Value& object) {
          [[maybe_unused]] T& own = std::any_cast<T&>(content);
          if constexpr (config_detail::HasSource<T>) own.source = object;
          if constexpr (config_detail::HasConfigProblem<T>) {
            return ConfigProblem(config_problem(std::as_const(own)));
          } else {
            return ConfigProblem();
          }
        }) {}

  /// Returns the name of the alternative.
  const std::string& name() const { return name_; }

  /// Returns the settings, or nullptr if they are of another type.
  template <class T>
  const T* find() const {
    return std::any_cast<T>(&content_);
  }
  /// Returns the settings. Throws Error (failure) if they are of another type.
  template <class T>
  const T& as() const {
    if (const T* found = find<T>()) return *found;
    fail("settings of '{}' have another type than the one asked for", name_);
  }
  /// Returns settings that may be changed.
  template <class T>
  T& as() {
    return const_cast<T&>(std::as_const(*this).as<T>());
  }

  /// Applies one of the visitors of config/fields.h to the settings.
  void visit(auto& fields) { visit_(content_, &fields); }
  /// Returns what is wrong with the settings that were read from `object`, or an empty problem.
  ConfigProblem problem(const Value& object) { return problem_(content_, object); }

 private:
  using Fields = std::variant<config_detail::KeyCollector*, config_detail::FieldReader*,
                              config_detail::FieldWriter*, config_detail::HelpFields*>;

  std::string name_;
  std::any content_;
  void (*visit_)(std::any& content, Fields fields) = nullptr;
  ConfigProblem (*problem_)(std::any& content, const Value& object) = nullptr;
};

/// Returns the settings of all entries of a registry, the default entry first.
template <class Entry>
std::vector<NamedSettings> choices_of(const Registry<Entry>& registry, const std::string& first) {
  std::vector<NamedSettings> choices = {registry.at(first).settings};
  for (const auto& [name, entry] : registry.entries()) {
    if (name != first) choices.push_back(entry.settings);
  }
  return choices;
}

}  // namespace moesaic
