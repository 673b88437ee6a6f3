// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/config/value.h"

namespace moesaic {

/// Constraints on a setting, and whether short help shows it. Limits and choices apply to every
/// item of a list, an optional or a map.
struct Rules {
  bool is_required = false;
  bool is_filled = false;
  bool is_common = false;
  std::vector<std::string> choices;
  std::optional<double> above, at_least, below, at_most;

  template <class... R>
  static Rules all(const R&... rules) {
    Rules sum;
    (sum.add(rules), ...);
    return sum;
  }
  void add(const Rules& other);
  std::string text() const;  // Text for help: "above 0", "0 to 1", "sgd | adamw".

  /// Checks a value. Throws Error (usage) with the position, the value found and what is allowed.
  void check(double number, const Value& value, std::string_view name) const;
  void check(const std::string& string, const Value& value, std::string_view name) const;
  void check_filled(bool filled, const Value& value, std::string_view name) const;
};

struct RequiredRule {
  operator Rules() const;  // NOLINT(google-explicit-constructor): stands among rules
};
struct FilledRule {
  operator Rules() const;  // NOLINT(google-explicit-constructor): stands among rules
};
struct CommonRule {
  operator Rules() const;  // NOLINT(google-explicit-constructor): stands among rules
};

inline constexpr CommonRule common;      // The setting is among those that short help shows.
inline constexpr RequiredRule required;  // The key must be given.
inline constexpr FilledRule not_empty;   // A string, list or map must not be empty.
Rules one_of(std::vector<std::string> choices);
Rules above(double limit);               // Requires x > limit.
Rules at_least(double limit);            // Requires x >= limit.
Rules below(double limit);               // Requires x < limit.
Rules at_most(double limit);             // Requires x <= limit.
Rules between(double low, double high);  // Requires low <= x <= high.

}  // namespace moesaic
