// SPDX-License-Identifier: Apache-2.0
// Types of settings that describe() declares (config/schema.h), then visitors of the declarations:
// reading, writing, help.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "moesaic/config/rules.h"
#include "moesaic/config/value.h"

namespace moesaic::config_detail {

struct AnyFields;  // Stands for every visitor; overload resolution needs none of its members.

/// A struct with a describe() that argument-dependent lookup finds.
template <class T>
concept Described = requires(AnyFields& fields, T& config) {
  describe(fields, config);
};

/// A struct whose settings are checked against one another by config_problem().
template <class T>
concept HasConfigProblem = requires(const T& config) {
  ConfigProblem(config_problem(config));
};

/// A struct that stores the value it was read from, with its origin.
template <class T>
concept HasSource = requires(T& config) {
  config.source = Value();
};

/// Whether a type is an instance of a template.
template <class T, template <class...> class Of>
inline constexpr bool kIsOf = false;
template <class... A, template <class...> class Of>
inline constexpr bool kIsOf<Of<A...>, Of> = true;

template <class T>
concept List = kIsOf<T, std::vector>;
template <class T>
concept Optional = kIsOf<T, std::optional>;
template <class T>
concept Map = kIsOf<T, std::map>;

template <class T>
inline constexpr bool kUnsupported = false;

/// Returns the number as JSON. Throws Error (usage) for NaN and infinity, which JSON does not have.
Json write_number(double number);
/// Returns one number if both sides are equal, else [height, width].
Json write_size2d(const Size2d& sides);

/// Returns 0, an integer of steps, or a text where a bare number may be read as epochs.
Json write_interval(const Interval& interval);

template <class T>
Json write(const T& value);

class FieldWriter {
 public:
  template <class T, class... R>
  void operator()(std::string_view name, T& field, std::string_view, const R&...) {
    json_[std::string(name)] = write(field);
  }
  template <class NamedSettings, class... R>
  void choice(std::string_view key, NamedSettings& field, const std::vector<NamedSettings>&,
              std::string_view, const R&...) {
    json_[std::string(key)] = field.name();
    field.visit(*this);
  }
  Json take() { return std::move(json_); }

 private:
  Json json_ = Json::object();
};

template <class T>
Json write(const T& value) {
  if constexpr (std::is_same_v<T, Value>) {
    return value.to_json();
  } else if constexpr (std::is_same_v<T, double>) {
    return write_number(value);
  } else if constexpr (std::is_same_v<T, Size2d>) {
    return write_size2d(value);
  } else if constexpr (std::is_same_v<T, Interval>) {
    return write_interval(value);
  } else if constexpr (List<T>) {
    auto list = Json::array();
    for (const auto& item : value) list.push_back(write<typename T::value_type>(item));
    return list;
  } else if constexpr (Map<T>) {
    auto map = Json::object();
    for (const auto& [key, item] : value) map[key] = write(item);
    return map;
  } else if constexpr (Optional<T>) {
    return value ? write(*value) : Json(nullptr);
  } else if constexpr (Described<T>) {
    T copy = value;  // describe() takes a mutable reference.
    FieldWriter fields;
    describe(fields, copy);
    return fields.take();
  } else {
    return Json(value);
  }
}

std::string join_path(std::string_view path, std::string_view name);

/// A setting: its key as arguments have it, where N stands for the number or name of an item.
struct HelpRow {
  std::string key, type, default_value, allowed, description;
  bool is_common = false;
  std::vector<std::string> former_keys = {};  ///< Last part of the key in earlier versions.
  std::vector<std::string> other_names = {};  ///< Names of the setting in other libraries.
  std::string choice = {};  ///< Choice that has the setting: "kind 'solve'"; "": all.

  friend bool operator==(const HelpRow&, const HelpRow&) = default;
};

template <class T>
void add_help(const std::string& prefix, const T& default_value, std::vector<HelpRow>& rows);

/// A key, and that of the same setting in earlier versions.
struct RenamedKey {
  std::string former, name;
};

/// Returns the object with the present keys in place of former ones. Warns of the first place in a
/// file where a user wrote one. An argument takes precedence over a file; otherwise throws Error
/// (usage) where both keys are given.
Value with_current_keys(const Value& object, const std::string& path,
                        const std::vector<RenamedKey>& renamed);
/// Throws Error (usage) for a member whose key is not among `known`, with the nearest of them, or
/// the setting that help_rows_matching() finds among `rows`, which are made for the message only.
void check_known(const Value& object, const std::string& path,
                 const std::vector<std::string>& known, std::vector<HelpRow> (*rows)());
[[noreturn]] void fail_missing(const Value& object, const std::string& path, std::string_view name);
[[noreturn]] void fail_problem(const Value& object, const std::string& path,
                               const ConfigProblem& problem);
/// Returns the name that `object` has under `key`, else the first of `names`. Throws Error (usage)
/// with the nearest name for one that is not among them.
std::string chosen_name(const Value& object, const std::string& path, std::string_view key,
                        const std::vector<std::string>& names);

template <class NamedSettings>
std::vector<std::string> names_of(const std::vector<NamedSettings>& choices) {
  std::vector<std::string> names;
  for (const NamedSettings& choice : choices) names.push_back(choice.name());
  return names;
}

/// Returns the one of `choices` that `object` names under `key`, with its defaults.
template <class NamedSettings>
NamedSettings chosen(const Value& object, const std::string& path, std::string_view key,
                     const std::vector<NamedSettings>& choices) {
  const std::string name = chosen_name(object, path, key, names_of(choices));
  for (const NamedSettings& choice : choices) {
    if (choice.name() == name) return choice;
  }
  return {};
}

class KeyCollector {
 public:
  KeyCollector(const Value& object, const std::string& path) : object_(object), path_(path) {}

  template <class T, class... R>
  void operator()(std::string_view name, T&, std::string_view, const R&... rules) {
    add(name, Rules::all(rules...).former_keys);
  }
  template <class NamedSettings, class... R>
  void choice(std::string_view key, NamedSettings&, const std::vector<NamedSettings>& choices,
              std::string_view, const R&... rules) {
    const Rules all = Rules::all(rules...);
    add(key, all.former_keys);
    std::string_view given = key;
    for (const std::string& former : all.former_keys) {
      if (object_.find(given) == nullptr) given = former;
    }
    chosen(object_, path_, given, choices).visit(*this);
  }
  const std::vector<std::string>& keys() const { return keys_; }
  const std::vector<RenamedKey>& renamed() const { return renamed_; }

 private:
  void add(std::string_view key, const std::vector<std::string>& formers) {
    keys_.emplace_back(key);
    for (const std::string& former : formers) renamed_.push_back({former, std::string(key)});
  }

  const Value& object_;
  const std::string& path_;
  std::vector<std::string> keys_;
  std::vector<RenamedKey> renamed_;
};

template <class T>
void read(const Value& value, const std::string& path, const Rules& rules, T& out);

template <class T>
void read_struct(const Value& value, const std::string& path, T& out);

/// Throws Error (usage) unless the value is an object, with the object that a string may stand for
/// where `keys` has "name".
void check_object(const Value& value, const std::string& path,
                  const std::vector<std::string>& keys);

/// Reads a Size2d from one integer or [height, width].
Size2d read_size2d(const Value& value, const std::string& path, const Rules& rules);

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

  template <class NamedSettings, class... R>
  void choice(std::string_view key, NamedSettings& field, const std::vector<NamedSettings>& choices,
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
void read_struct(const Value& given, const std::string& path, T& out) {
  KeyCollector keys(given, path);
  describe(keys, out);
  check_object(given, path, keys.keys());
  const Value value =
      keys.renamed().empty() ? given : with_current_keys(given, path, keys.renamed());
  check_known(value, path, keys.keys(), [] {
    std::vector<HelpRow> rows;
    add_help(std::string(), T{}, rows);
    return rows;
  });
  FieldReader fields(value, path);
  describe(fields, out);
  if constexpr (HasSource<T>) out.source = value;
  if constexpr (HasConfigProblem<T>) {
    const ConfigProblem problem(config_problem(std::as_const(out)));
    if (!problem.empty()) fail_problem(value, path, problem);
  }
}

template <List T>
void read_list(const Value& value, const std::string& path, const Rules& rules, T& out) {
  const Value::Array& items = value.items(path);
  rules.check_not_empty(!items.empty(), value, path);
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
  rules.check_not_empty(!members.empty(), value, path);
  out.clear();
  for (const Value::Member& member : members) {
    read(member.value, join_path(path, member.key), rules, out[member.key]);
  }
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
  } else if constexpr (std::is_same_v<T, Size2d>) {
    out = read_size2d(value, path, rules);
  } else if constexpr (std::is_same_v<T, Interval>) {
    out = read_interval(value, path, rules, out.default_unit);
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
    out.reset();
    if (!value.is_null()) read(value, path, rules, out.emplace());
  } else if constexpr (Described<T>) {
    read_struct(value, path, out);
  } else {
    static_assert(kUnsupported<T>,
                  "this type of setting has no describe() and is none of the basic ones");
  }
}

template <class T>
std::string type_name() {
  if constexpr (std::is_same_v<T, bool>) {
    return "bool";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return "integer";
  } else if constexpr (std::is_same_v<T, Size2d>) {
    return "integer or [height, width]";
  } else if constexpr (std::is_same_v<T, Interval>) {
    return "\"N steps\" or \"N epochs\"";
  } else if constexpr (std::is_same_v<T, double>) {
    return "number";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "string";
  } else if constexpr (List<T>) {
    return "list of " + type_name<typename T::value_type>();
  } else if constexpr (Map<T>) {
    return "map to " + type_name<typename T::mapped_type>();
  } else if constexpr (Optional<T>) {
    return type_name<typename T::value_type>() + " or null";
  } else if constexpr (Described<T>) {
    return "object";
  } else {
    return "any";
  }
}

/// Returns the type of a setting with this default; that of an interval names its plain unit.
template <class T>
std::string type_of(const T&) {
  return type_name<T>();
}
std::string type_of(const Interval& default_value);

// Adds the settings inside the items of a list, an optional or a map.
template <class T>
void add_item_help(const std::string& key, std::vector<HelpRow>& rows) {
  if constexpr (List<T>) {
    add_item_help<typename T::value_type>(key + ".N", rows);
  } else if constexpr (Map<T>) {
    add_item_help<typename T::mapped_type>(key + ".<name>", rows);
  } else if constexpr (Optional<T>) {
    add_item_help<typename T::value_type>(key, rows);
  } else if constexpr (Described<T>) {
    add_help(key, T{}, rows);
  }
}

class HelpFields {
 public:
  HelpFields(const std::string& prefix, std::vector<HelpRow>& rows)
      : prefix_(prefix), rows_(rows) {}

  template <class T, class... R>
  void operator()(std::string_view name, T& field, std::string_view description,
                  const R&... rules) {
    const std::string key = join_path(prefix_, name);
    const Rules all = Rules::all(rules...);
    rows_.push_back({key, type_of(field), all.is_required ? "required" : write(field).dump(),
                     all.text(), std::string(description), all.is_common, all.former_keys,
                     all.other_names});
    if constexpr (Described<T>) {
      add_help(key, field, rows_);
    } else {
      add_item_help<T>(key, rows_);
    }
  }

  /// Adds the settings of every choice; all but the first prefix them with the choice's name.
  template <class NamedSettings, class... R>
  void choice(std::string_view name, NamedSettings&, const std::vector<NamedSettings>& choices,
              std::string_view description, const R&... rules) {
    const Rules all = Rules::all(rules...);
    rows_.push_back({join_path(prefix_, name), "string", write(choices.front().name()).dump(),
                     one_of(names_of(choices)).text(), std::string(description), all.is_common,
                     all.former_keys, all.other_names});
    for (NamedSettings choice : choices) {
      const size_t first = rows_.size();
      choice.visit(*this);
      for (size_t i = first; i < rows_.size(); ++i) {
        HelpRow& row = rows_[i];
        if (row.choice.empty()) row.choice = fmt::format("{} '{}'", name, choice.name());
        if (choice.name() == choices.front().name()) continue;
        row.description = choice.name() + ": " + row.description;
      }
    }
  }

 private:
  const std::string& prefix_;
  std::vector<HelpRow>& rows_;
};

template <class T>
void add_help(const std::string& prefix, const T& default_value, std::vector<HelpRow>& rows) {
  T copy = default_value;
  HelpFields fields(prefix, rows);
  describe(fields, copy);
}

}  // namespace moesaic::config_detail
