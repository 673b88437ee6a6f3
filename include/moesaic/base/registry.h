// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/suggestions.h"

namespace moesaic {

/// Entries found by name. The built-in ones are passed to the constructor, so that the linker
/// cannot drop them; a program adds its own before it reads any configuration. add() must not run
/// concurrently with lookups. Where entries have a `description`, which lists show, none may lack
/// it.
template <class Entry>
class Registry {
 public:
  using Entries = std::map<std::string, Entry>;

  /// `what` names an entry in messages, e.g. "model".
  Registry(std::string what, Entries built_in)
      : what_(std::move(what)), entries_(std::move(built_in)) {
    for (const auto& [name, entry] : entries_) check_description(name, entry);
  }

  /// Adds an entry. Throws Error (usage) if the name is taken, or if its description is empty.
  /// Returns true, so that the initial value of a constant can add one.
  bool add(const std::string& name, Entry entry) {
    check_description(name, entry);
    if (!entries_.emplace(name, std::move(entry)).second) {
      fail_usage("{} '{}' is already registered", what_, name);
    }
    return true;
  }

  /// Returns the entry of a name, or nullptr if it is unknown.
  const Entry* find(const std::string& name) const {
    const auto found = entries_.find(name);
    return found == entries_.end() ? nullptr : &found->second;
  }

  /// Returns an entry. Throws Error (usage), "<where>: unknown <what> '<name>'; <nearest name>".
  const Entry& at(const std::string& name, const std::string& where = {}) const {
    if (const Entry* entry = find(name)) return *entry;
    fail_usage("{}{}unknown {} '{}'; {}", where, where.empty() ? "" : ": ", what_, name,
               did_you_mean(name, names()));
  }

  /// Returns all names, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> list;
    for (const auto& [name, unused] : entries_) list.push_back(name);
    return list;
  }

  /// Returns all entries by name.
  const Entries& entries() const { return entries_; }

 private:
  void check_description(const std::string& name, const Entry& entry) const {
    if constexpr (requires { entry.description.empty(); }) {
      if (entry.description.empty())
        fail_usage("{} '{}' has no description; give one line", what_, name);
    }
  }

  std::string what_;
  Entries entries_;
};

}  // namespace moesaic
