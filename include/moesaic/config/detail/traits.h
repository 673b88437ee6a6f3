// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "moesaic/config/problem.h"

namespace moesaic::config_detail {

struct AnyFields {
  template <class T, class... R>
  void operator()(std::string_view, T&, std::string_view, const R&...) {}
  template <class Choice, class... R>
  void choice(std::string_view, Choice&, const std::vector<Choice>&, std::string_view,
              const R&...) {}
};

/// A struct with a describe() that argument-dependent lookup finds.
template <class T>
concept Described = requires(AnyFields& fields, T& config) {
  describe(fields, config);
};

/// A struct whose settings are checked against one another by config_problem().
template <class T>
concept Checked = requires(const T& config) {
  ConfigProblem(config_problem(config));
};

/// A struct that stores the value it was read from, with its origin.
template <class T>
concept Placed = requires(T& config) {
  config.source = Value();
};

template <class T>
struct ListTraits : std::false_type {};
template <class T>
struct ListTraits<std::vector<T>> : std::true_type {};

template <class T>
struct OptionalTraits : std::false_type {};
template <class T>
struct OptionalTraits<std::optional<T>> : std::true_type {};

template <class T>
struct MapTraits : std::false_type {};
template <class T>
struct MapTraits<std::map<std::string, T>> : std::true_type {};

template <class T>
concept List = ListTraits<T>::value;
template <class T>
concept Optional = OptionalTraits<T>::value;
template <class T>
concept Map = MapTraits<T>::value;

template <class T>
inline constexpr bool kUnsupported = false;

}  // namespace moesaic::config_detail
