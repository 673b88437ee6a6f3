// SPDX-License-Identifier: Apache-2.0
// Rules for one setting, and problems between several.
#pragma once

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moesaic/config/value.h"

namespace moesaic {

/// Height and width of a rectangle; a setting of this type is one number, or [height, width].
struct Size2d {
  int64_t height = 0, width = 0;

  constexpr Size2d() = default;
  /// A square.
  constexpr Size2d(int64_t side) : height(side), width(side) {}  // NOLINT: One number is a square.
  /// Any rectangle.
  constexpr Size2d(int64_t height_, int64_t width_) : height(height_), width(width_) {}

  /// Returns whether both sides are equal.
  constexpr bool is_square() const { return height == width; }
  friend constexpr bool operator==(const Size2d&, const Size2d&) = default;
};

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
  std::vector<std::string> other_names;  // Names of the setting in other libraries.

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
/// Suggests the setting to whoever gives it the name that it has in another library.
Rules known_as(std::vector<std::string> names);

/// An inconsistency between settings ("" if there is none) and the offending settings, as dotted
/// paths below the struct. The error points at one of these, preferably at one given on the command
/// line, since that is what changed last.
struct ConfigProblem {
  ConfigProblem() = default;
  /// `what` says what is wrong, "" nothing; `at` are the paths of the offending settings.
  // NOLINTNEXTLINE(google-explicit-constructor): A text is a problem of the whole struct.
  ConfigProblem(std::string what, std::vector<std::string> at = {})
      : text(std::move(what)), offending(std::move(at)) {}

  /// Returns whether nothing is wrong.
  bool empty() const { return text.empty(); }

  std::string text;
  std::vector<std::string> offending;
  /// Values that turn mutually exclusive settings off, one for each of `offending`; else empty.
  std::vector<std::string> off_values;
};

/// Returns the first problem that is not empty.
ConfigProblem first_problem(std::initializer_list<ConfigProblem> problems);

/// A setting and the value that is equivalent to leaving it out.
struct OptionalSetting {
  std::string name, off;
};

/// Returns the problem that both settings are given. The error says how to turn off the one that
/// was not given on the command line; if neither was, it points at `second`.
ConfigProblem mutually_exclusive(const OptionalSetting& first, const OptionalSetting& second);

/// Returns whether the setting (a dotted path below `config`) was given on the command line.
bool is_argument(const Value& config, const std::string& path);

/// Returns the command-line arguments that values in the configuration come from, as messages name
/// them: "argument 'a.b=value'".
std::set<std::string> arguments_in(const Value& config);

/// Returns the origin of the first of `offending` that came from the command line, else of the
/// first that exists, else of `config`. Paths are dotted, below `config`, with list items by index;
/// the last key may contain dots. A path that ends in ':' means the position of the key, not of its
/// value.
std::string location_of(const Value& config, const std::vector<std::string>& offending);

}  // namespace moesaic
