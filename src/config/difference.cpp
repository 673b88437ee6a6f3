// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/difference.h"

#include <fmt/format.h>

#include <algorithm>

#include "moesaic/base/text.h"
#include "moesaic/config/detail/reader.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

Json member(const Json& object, const std::string& key) {
  return object.contains(key) ? object.at(key) : Json();
}

void add(const Json& a, const Json& b, const std::string& path, std::vector<Difference>& list) {
  if (a.is_object() && b.is_object()) {
    for (const auto& [key, value] : a.items()) {
      add(value, member(b, key), config_detail::join_path(path, key), list);
    }
    for (const auto& [key, value] : b.items()) {
      if (!a.contains(key)) add(Json(), value, config_detail::join_path(path, key), list);
    }
  } else if (a.is_array() && b.is_array()) {
    for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      add(i < a.size() ? a[i] : Json(), i < b.size() ? b[i] : Json(),
          config_detail::join_path(path, std::to_string(i)), list);
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

std::vector<Difference> differences(const Json& before, const Json& after) {
  std::vector<Difference> list;
  add(before, after, "", list);
  return list;
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
