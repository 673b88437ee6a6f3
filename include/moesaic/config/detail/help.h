// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "moesaic/config/detail/reader.h"
#include "moesaic/config/detail/traits.h"
#include "moesaic/config/detail/writer.h"
#include "moesaic/config/interval.h"
#include "moesaic/config/rules.h"
#include "moesaic/config/sides.h"
#include "moesaic/config/value.h"

namespace moesaic::config_detail {

/// A setting: its key as arguments have it, where N stands for the number or name of an item.
struct HelpRow {
  std::string key, type, preset, allowed, meaning;
  bool common = false;

  friend bool operator==(const HelpRow&, const HelpRow&) = default;
};

template <class T>
std::string type_name() {
  if constexpr (std::is_same_v<T, bool>) {
    return "bool";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return "integer";
  } else if constexpr (std::is_same_v<T, Sides>) {
    return "integer or [height, width]";
  } else if constexpr (std::is_same_v<T, Interval>) {
    return "\"N steps\", \"N epochs\" or a number of steps";
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

template <class T>
void add_help(const std::string& prefix, const T& preset, std::vector<HelpRow>& rows);

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
  void operator()(std::string_view name, T& field, std::string_view meaning, const R&... rules) {
    const std::string key = join_path(prefix_, name);
    if constexpr (Described<T>) {
      add_help(key, field, rows_);
    } else {
      const Rules all = Rules::all(rules...);
      rows_.push_back({key, type_name<T>(), all.is_required ? "required" : write(field).dump(),
                       all.text(), std::string(meaning), all.is_common});
      add_item_help<T>(key, rows_);
    }
  }

  /// Adds the settings of every choice; all but the first prefix them with the choice's name.
  template <class Choice, class... R>
  void choice(std::string_view name, Choice&, const std::vector<Choice>& choices,
              std::string_view meaning, const R&... rules) {
    rows_.push_back({join_path(prefix_, name), "string", write(choices.front().name()).dump(),
                     one_of(names_of(choices)).text(), std::string(meaning),
                     Rules::all(rules...).is_common});
    for (Choice choice : choices) {
      const size_t first = rows_.size();
      choice.visit(*this);
      for (size_t i = first; i < rows_.size() && choice.name() != choices.front().name(); ++i) {
        rows_[i].meaning = choice.name() + ": " + rows_[i].meaning;
      }
    }
  }

 private:
  const std::string& prefix_;
  std::vector<HelpRow>& rows_;
};

template <class T>
void add_help(const std::string& prefix, const T& preset, std::vector<HelpRow>& rows) {
  T copy = preset;
  HelpFields fields(prefix, rows);
  describe(fields, copy);
}

}  // namespace moesaic::config_detail
