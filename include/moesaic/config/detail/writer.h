// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "moesaic/config/detail/traits.h"
#include "moesaic/config/interval.h"
#include "moesaic/config/sides.h"
#include "moesaic/config/value.h"

namespace moesaic::config_detail {

/// Returns the number as JSON. Throws Error (usage) for NaN and infinity, which JSON does not have.
nlohmann::ordered_json write_number(double number);
/// Returns one number if both sides are equal, else [height, width].
nlohmann::ordered_json write_sides(const Sides& sides);

/// Returns 0, an integer of steps, or a text where a bare number may be read as epochs.
nlohmann::ordered_json write_interval(const Interval& interval);

template <class T>
nlohmann::ordered_json write(const T& value);

class FieldWriter {
 public:
  template <class T, class... R>
  void operator()(std::string_view name, T& field, std::string_view, const R&...) {
    json_[std::string(name)] = write(field);
  }
  template <class Choice, class... R>
  void choice(std::string_view key, Choice& field, const std::vector<Choice>&, std::string_view,
              const R&...) {
    json_[std::string(key)] = field.name();
    field.visit(*this);
  }
  nlohmann::ordered_json take() { return std::move(json_); }

 private:
  nlohmann::ordered_json json_ = nlohmann::ordered_json::object();
};

template <class T>
nlohmann::ordered_json write(const T& value) {
  if constexpr (std::is_same_v<T, Value>) {
    return value.to_json();
  } else if constexpr (std::is_same_v<T, double>) {
    return write_number(value);
  } else if constexpr (std::is_same_v<T, Sides>) {
    return write_sides(value);
  } else if constexpr (std::is_same_v<T, Interval>) {
    return write_interval(value);
  } else if constexpr (List<T>) {
    auto list = nlohmann::ordered_json::array();
    for (const auto& item : value) list.push_back(write<typename T::value_type>(item));
    return list;
  } else if constexpr (Map<T>) {
    auto map = nlohmann::ordered_json::object();
    for (const auto& [key, item] : value) map[key] = write(item);
    return map;
  } else if constexpr (Optional<T>) {
    return value ? write(*value) : nlohmann::ordered_json(nullptr);
  } else if constexpr (Described<T>) {
    T copy = value;  // describe() takes a mutable reference.
    FieldWriter fields;
    describe(fields, copy);
    return fields.take();
  } else {
    return nlohmann::ordered_json(value);
  }
}

}  // namespace moesaic::config_detail
