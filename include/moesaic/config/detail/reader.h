// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "moesaic/config/detail/traits.h"
#include "moesaic/config/interval.h"
#include "moesaic/config/rules.h"
#include "moesaic/config/sides.h"
#include "moesaic/config/value.h"

namespace moesaic::config_detail {

std::string join_path(std::string_view path, std::string_view name);
void check_keys(const Value& object, const std::string& path,
                const std::vector<std::string>& known);
[[noreturn]] void fail_missing(const Value& object, const std::string& path, std::string_view name);
[[noreturn]] void fail_problem(const Value& object, const std::string& path,
                               const ConfigProblem& problem);
/// Returns the name that `object` has under `key`, else the first of `names`. Throws Error (usage)
/// with the nearest name for one that is not among them.
std::string chosen_name(const Value& object, const std::string& path, std::string_view key,
                        const std::vector<std::string>& names);

template <class Choice>
std::vector<std::string> names_of(const std::vector<Choice>& choices) {
  std::vector<std::string> names;
  for (const Choice& choice : choices) names.push_back(choice.name());
  return names;
}

/// Returns the one of `choices` that `object` names under `key`, with its defaults.
template <class Choice>
Choice chosen(const Value& object, const std::string& path, std::string_view key,
              const std::vector<Choice>& choices) {
  const std::string name = chosen_name(object, path, key, names_of(choices));
  for (const Choice& choice : choices) {
    if (choice.name() == name) return choice;
  }
  return {};
}

class KeyCollector {
 public:
  KeyCollector(const Value& object, const std::string& path) : object_(object), path_(path) {}

  template <class T, class... R>
  void operator()(std::string_view name, T&, std::string_view, const R&...) {
    keys_.emplace_back(name);
  }
  template <class Choice, class... R>
  void choice(std::string_view key, Choice&, const std::vector<Choice>& choices, std::string_view,
              const R&...) {
    keys_.emplace_back(key);
    chosen(object_, path_, key, choices).visit(*this);
  }
  const std::vector<std::string>& keys() const { return keys_; }

 private:
  const Value& object_;
  const std::string& path_;
  std::vector<std::string> keys_;
};

template <class T>
void read(const Value& value, const std::string& path, const Rules& rules, T& out);

template <class T>
void read_struct(const Value& value, const std::string& path, T& out);

/// Throws Error (usage) unless the value is an object, with the object that a string may stand for
/// where `keys` has "name".
void check_object(const Value& value, const std::string& path,
                  const std::vector<std::string>& keys);

/// Reads Sides from one integer or [height, width].
Sides read_sides(const Value& value, const std::string& path, const Rules& rules);

/// Reads an Interval from a text such as "20 steps" or from an integer in the unit `plain`, with a
/// warning where that is epochs.
Interval read_interval(const Value& value, const std::string& path, const Rules& rules,
                       Interval::Unit plain);

/// Reads the fields of a struct. A missing group is read as an empty one, since it may contain
/// required keys.
class FieldReader {
 public:
  FieldReader(const Value& object, const std::string& path) : object_(object), path_(path) {}

  template <class T, class... R>
  void operator()(std::string_view name, T& field, std::string_view, const R&... rules) {
    const Rules all = Rules::all(rules...);
    if (const Value* value = object_.find(name)) {
      read(*value, join_path(path_, name), all, field);
    } else if (all.is_required) {
      fail_missing(object_, path_, name);
    } else if constexpr (Described<T>) {
      read_struct(Value(object_.origin(), Value::Object{}), join_path(path_, name), field);
    }
  }

  template <class Choice, class... R>
  void choice(std::string_view key, Choice& field, const std::vector<Choice>& choices,
              std::string_view, const R&...) {
    field = chosen(object_, path_, key, choices);
    field.visit(*this);
    const ConfigProblem problem = field.problem(object_);
    if (!problem.empty()) fail_problem(object_, path_, problem);
  }

 private:
  const Value& object_;
  const std::string& path_;
};

/// Reads a struct. Unknown keys are reported before missing ones, since they may be misspelt ones.
template <class T>
void read_struct(const Value& value, const std::string& path, T& out) {
  KeyCollector keys(value, path);
  describe(keys, out);
  check_object(value, path, keys.keys());
  check_keys(value, path, keys.keys());
  FieldReader fields(value, path);
  describe(fields, out);
  if constexpr (Placed<T>) out.source = value;
  if constexpr (Checked<T>) {
    const ConfigProblem problem(config_problem(std::as_const(out)));
    if (!problem.empty()) fail_problem(value, path, problem);
  }
}

template <List T>
void read_list(const Value& value, const std::string& path, const Rules& rules, T& out) {
  const Value::Array& items = value.items(path);
  rules.check_filled(!items.empty(), value, path);
  out.clear();
  for (size_t i = 0; i < items.size(); ++i) {
    typename T::value_type item{};
    read(items[i], path + "." + std::to_string(i), rules, item);
    out.push_back(std::move(item));
  }
}

template <Map T>
void read_map(const Value& value, const std::string& path, const Rules& rules, T& out) {
  const Value::Object& members = value.members(path);
  rules.check_filled(!members.empty(), value, path);
  out.clear();
  for (const Value::Member& member : members) {
    read(member.value, join_path(path, member.key), rules, out[member.key]);
  }
}

template <Optional T>
void read_optional(const Value& value, const std::string& path, const Rules& rules, T& out) {
  out.reset();
  if (!value.is_null()) read(value, path, rules, out.emplace());
}

template <class T>
void read(const Value& value, const std::string& path, const Rules& rules, T& out) {
  if constexpr (std::is_same_v<T, Value>) {
    out = value;
  } else if constexpr (std::is_same_v<T, bool>) {
    out = value.as_bool(path);
  } else if constexpr (std::is_same_v<T, int64_t>) {
    out = value.as_int(path);
    rules.check(static_cast<double>(out), value, path);
  } else if constexpr (std::is_same_v<T, Sides>) {
    out = read_sides(value, path, rules);
  } else if constexpr (std::is_same_v<T, Interval>) {
    out = read_interval(value, path, rules, out.plain);
  } else if constexpr (std::is_same_v<T, double>) {
    out = value.as_double(path);
    rules.check(out, value, path);
  } else if constexpr (std::is_same_v<T, std::string>) {
    out = value.as_string(path);
    rules.check(out, value, path);
  } else if constexpr (List<T>) {
    read_list(value, path, rules, out);
  } else if constexpr (Map<T>) {
    read_map(value, path, rules, out);
  } else if constexpr (Optional<T>) {
    read_optional(value, path, rules, out);
  } else if constexpr (Described<T>) {
    read_struct(value, path, out);
  } else {
    static_assert(kUnsupported<T>,
                  "this type of setting has no describe() and is none of the basic ones");
  }
}

}  // namespace moesaic::config_detail
