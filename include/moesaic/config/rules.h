// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/config/value.h"

namespace moesaic {

/// How often something is done. A setting of this type is a text that names the unit, "20 steps" or
/// "1 epoch", or a bare number in `default_unit`.
struct Interval {
  enum class Unit { steps, epochs };

  int64_t count = 0;  ///< 0: never.
  Unit unit = Unit::steps;
  Unit default_unit = Unit::steps;  ///< Unit of a bare number: epochs where it was so at first.

  /// Returns an interval of steps.
  static constexpr Interval from_steps(int64_t count) { return {count, Unit::steps, Unit::steps}; }
  /// Returns an interval of epochs.
  static constexpr Interval from_epochs(int64_t count) {
    return {count, Unit::epochs, Unit::epochs};
  }

  /// Returns whether one of the last `steps` steps completed an interval: of steps by their number
  /// in the run, of epochs by that in the phase.
  bool is_completed_by(int64_t steps, int64_t run_step, int64_t phase_step,
                       int64_t steps_per_epoch) const;

  friend constexpr bool operator==(const Interval&, const Interval&) = default;
};

/// Returns "20 steps".
std::string to_text(const Interval& interval);

/// Constraints on a setting, and whether short help shows it. Limits and choices apply to every
/// item of a list, an optional or a map.
struct Rules {
  enum class Flag { required, not_empty, common };

  bool is_required = false;
  bool is_not_empty = false;
  bool is_common = false;
  std::vector<std::string> choices;
  std::string choices_text;  // Text of many choices for help; empty: all of them.
  std::optional<double> above, at_least, below, at_most;
  std::vector<std::string> former_keys;  // Keys of the setting in earlier versions.

  /// Returns these rules together.
  template <class... R>
  static Rules all(const R&... rules) {
    Rules sum;
    (sum.add(rules), ...);
    return sum;
  }
  /// Adds a flag.
  void add(Flag flag);
  /// Adds the constraints of `other`.
  void add(const Rules& other);
  std::string text() const;  ///< Text for help: "above 0", "0 to 1", "sgd | adamw".

  /// Checks a value. Throws Error (usage) with the position, the value found and what is allowed.
  void check(double number, const Value& value, std::string_view name) const;
  /// Checks a text, which must be one of `choices`, if there are any.
  void check(const std::string& string, const Value& value, std::string_view name) const;
  /// Checks that a value is filled where `not_empty` asks for that.
  void check_not_empty(bool is_filled, const Value& value, std::string_view name) const;
};

// Literals: compilers disagree on which static objects of other types are initialized before
// main(), and one of them reads zeros where the program and the library come from two compilers.
inline constexpr auto common = Rules::Flag::common;        ///< Short help shows the setting.
inline constexpr auto required = Rules::Flag::required;    ///< The key must be given.
inline constexpr auto not_empty = Rules::Flag::not_empty;  ///< A string, list or map has an item.
/// Requires one of these texts, which help shows as `text`; empty: all of them.
Rules one_of(std::vector<std::string> choices, std::string text = "");
Rules above(double limit);               ///< Requires x > limit.
Rules at_least(double limit);            ///< Requires x >= limit.
Rules below(double limit);               ///< Requires x < limit.
Rules at_most(double limit);             ///< Requires x <= limit.
Rules between(double low, double high);  ///< Requires low <= x <= high.
Rules renamed_from(std::string key);     ///< Reads a former key too, with a warning.

}  // namespace moesaic
