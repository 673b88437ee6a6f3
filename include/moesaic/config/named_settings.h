// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/registry.h"
#include "moesaic/config/fields.h"
#include "moesaic/config/problem.h"

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
      : name_(std::move(name)), content_(std::make_unique<Of<T>>(std::move(settings))) {}

  NamedSettings(const NamedSettings& other)
      : name_(other.name_), content_(other.content_ ? other.content_->clone() : nullptr) {}
  NamedSettings& operator=(const NamedSettings& other) {
    NamedSettings copy(other);
    std::swap(*this, copy);
    return *this;
  }
  NamedSettings(NamedSettings&&) noexcept = default;
  NamedSettings& operator=(NamedSettings&&) noexcept = default;
  ~NamedSettings() = default;

  /// Returns the name of the alternative.
  const std::string& name() const { return name_; }

  /// Returns the settings, or nullptr if they are of another type.
  template <class T>
  const T* find() const {
    const auto* content = dynamic_cast<const Of<T>*>(content_.get());
    return content == nullptr ? nullptr : &content->settings;
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

  /// Applies a visitor of config/schema.h to the settings.
  void visit(config_detail::KeyCollector& fields) { content_->visit(fields); }
  /// Applies a visitor that reads.
  void visit(config_detail::FieldReader& fields) { content_->visit(fields); }
  /// Applies a visitor that writes.
  void visit(config_detail::FieldWriter& fields) { content_->visit(fields); }
  /// Applies a visitor that collects help.
  void visit(config_detail::HelpFields& fields) { content_->visit(fields); }
  /// Returns what is wrong with the settings that were read from `object`, or an empty problem.
  ConfigProblem problem(const Value& object) { return content_->problem(object); }

 private:
  struct Content {
    virtual ~Content() = default;
    virtual std::unique_ptr<Content> clone() const = 0;
    virtual void visit(config_detail::KeyCollector& fields) = 0;
    virtual void visit(config_detail::FieldReader& fields) = 0;
    virtual void visit(config_detail::FieldWriter& fields) = 0;
    virtual void visit(config_detail::HelpFields& fields) = 0;
    virtual ConfigProblem problem(const Value& object) = 0;
  };

  template <class T>
  struct Of final : Content {
    explicit Of(T given) : settings(std::move(given)) {}
    std::unique_ptr<Content> clone() const override { return std::make_unique<Of>(settings); }
    void visit(config_detail::KeyCollector& fields) override { describe(fields, settings); }
    void visit(config_detail::FieldReader& fields) override { describe(fields, settings); }
    void visit(config_detail::FieldWriter& fields) override { describe(fields, settings); }
    void visit(config_detail::HelpFields& fields) override { describe(fields, settings); }
    ConfigProblem problem(const Value& object) override {
      if constexpr (config_detail::HasSource<T>) settings.source = object;
      if constexpr (config_detail::HasConfigProblem<T>) {
        return ConfigProblem(config_problem(std::as_const(settings)));
      } else {
        return {};
      }
    }
    T settings;
  };

  std::string name_;
  std::unique_ptr<Content> content_;
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
