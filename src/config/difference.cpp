// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "moesaic/base/text.h"
#include "moesaic/config/value.h"

namespace moesaic {
namespace {

/// The members of an object by key; its own search would compare all keys before.
std::map<std::string_view, const Json*> members_of(const Json& object) {
  std::map<std::string_view, const Json*> members;
  for (const auto& [key, value] : object.get_ref<const Json::object_t&>()) {
    members.emplace(key, &value);
  }
  return members;
}

void add_differences(const Json& a, const Json& b, const std::string& path,
                     const DifferenceOptions& form, std::vector<Difference>& list) {
  const auto add = [&](const Json& inner_a, const Json& inner_b, const std::string& name) {
    add_differences(inner_a, inner_b, path.empty() ? name : path + form.separator + name, form,
                    list);
  };
  if (a.is_object() && b.is_object()) {
    const auto before = members_of(a), after = members_of(b);
    for (const auto& [key, value] : a.items()) {
      const auto found = after.find(key);
      add(value, found == after.end() ? Json() : *found->second, key);
    }
    for (const auto& [key, value] : b.items()) {
      if (!before.contains(key)) add(Json(), value, key);
    }
  } else if (a.is_array() && b.is_array() && !form.compares_whole_lists) {
    for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      add(i < a.size() ? a[i] : Json(), i < b.size() ? b[i] : Json(), std::to_string(i));
    }
  } else if (a != b) {
    list.push_back({path, a, b});
  }
}

std::string value_text(const Json& value) {
  constexpr size_t kLongest = 60;
  return value.is_null() ? "absent" : one_line(value.dump(), kLongest);
}

}  // namespace

std::vector<Difference> differences(const Json& before, const Json& after,
                                    const DifferenceOptions& form) {
  std::vector<Difference> list;
  add_differences(before, after, "", form, list);
  return list;
}

std::string describe(const std::vector<Difference>& differences, bool is_side_by_side) {
  constexpr size_t kListed = 5;
  std::string text;
  for (size_t i = 0; i < std::min(kListed, differences.size()); ++i) {
    const auto& [path, before, after] = differences[i];
    const std::string a = value_text(before), b = value_text(after);
    if (i > 0) text += ", ";
    text += is_side_by_side ? fmt::format("'{}' is {}, not {}", path, b, a)
                            : fmt::format("'{}' was {} and is {} now", path, a, b);
  }
  if (differences.size() <= kListed) return text;
  return fmt::format("{}, and {} more", text, differences.size() - kListed);
}

}  // namespace moesaic
