// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

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

class Comparison {
 public:
  explicit Comparison(const DifferenceOptions& form) : form_(form) {}

  void add(const Json& a, const Json& b, const std::string& path) {
    if (a.is_object() && b.is_object()) return add_members(a, b, path);
    if (a.is_array() && b.is_array() && !form_.compares_whole_lists) return add_items(a, b, path);
    if (a != b) list_.push_back({path, a, b});
  }
  std::vector<Difference> take() && { return std::move(list_); }

 private:
  std::string joined(const std::string& path, const std::string& name) const {
    return path.empty() ? name : path + form_.separator + name;
  }

  void add_members(const Json& a, const Json& b, const std::string& path) {
    const auto before = members_of(a), after = members_of(b);
    for (const auto& [key, value] : a.items()) {
      const auto found = after.find(key);
      add(value, found == after.end() ? Json() : *found->second, joined(path, key));
    }
    for (const auto& [key, value] : b.items()) {
      if (!before.contains(key)) add(Json(), value, joined(path, key));
    }
  }

  void add_items(const Json& a, const Json& b, const std::string& path) {
    for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      add(i < a.size() ? a[i] : Json(), i < b.size() ? b[i] : Json(),
          joined(path, std::to_string(i)));
    }
  }

  const DifferenceOptions& form_;
  std::vector<Difference> list_;
};

std::string value_text(const Json& value) {
  constexpr size_t kLongest = 60;
  return value.is_null() ? "absent" : one_line(value.dump(), kLongest);
}

}  // namespace

std::vector<Difference> differences(const Json& before, const Json& after,
                                    const DifferenceOptions& form) {
  Comparison comparison(form);
  comparison.add(before, after, "");
  return std::move(comparison).take();
}

std::string describe(const std::vector<Difference>& differences, bool side_by_side) {
  constexpr size_t kListed = 5;
  std::string text;
  for (size_t i = 0; i < std::min(kListed, differences.size()); ++i) {
    const auto& [path, before, after] = differences[i];
    const std::string a = value_text(before), b = value_text(after);
    if (i > 0) text += ", ";
    text += side_by_side ? fmt::format("'{}' is {}, not {}", path, b, a)
                         : fmt::format("'{}' was {} and is {} now", path, a, b);
  }
  if (differences.size() <= kListed) return text;
  return fmt::format("{}, and {} more", text, differences.size() - kListed);
}

}  // namespace moesaic
