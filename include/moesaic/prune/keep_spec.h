// SPDX-License-Identifier: Apache-2.0
// How many experts stay, as a user says it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "moesaic/config/value.h"

namespace moesaic {

struct KeepFraction {
  double fraction = 1.0;  ///< of the E experts that the router knows, in (0, 1]
};
struct KeepCount {
  int64_t count = 0;
};
struct KeepIds {
  std::vector<int64_t> ids;  ///< ascending
};

/// What one layer keeps, and where that was said (for messages).
struct KeepRule {
  std::variant<KeepFraction, KeepCount, KeepIds> amount;
  std::string where;

  /// Experts that stay of `experts`: a fraction is rounded to the nearest number, halves up, and is
  /// at least 1.
  int64_t count(int64_t experts) const;
  /// The list, where the user gave one.
  const std::vector<int64_t>* ids() const;
};

/// Either one rule for every layer, or rules for some; the other layers stay as they are.
class KeepSpec {
 public:
  /// "0.25": a fraction (anything with a point or an exponent); "4": a count; else the path of a
  /// JSON file
  /// {"<block>": count | [ids], ...}. Throws Error (usage), in a file with its line and column.
  /// `where` says where the text was written, if not on the command line.
  static KeepSpec parse(const std::string& text, const std::string& where = {});
  /// The same from a configuration: a number with a fraction, a whole number, an object, or a
  /// string for parse().
  static KeepSpec from_value(const Value& value);

  static KeepSpec fraction(double fraction);
  static KeepSpec count(int64_t count);

  /// The rule of a block; nullptr: it stays as it is.
  const KeepRule* rule_of(int64_t block) const;
  /// Throws Error (usage) that says where a rule names a block that is not among these.
  void check_blocks(const std::vector<int64_t>& blocks) const;

 private:
  std::optional<KeepRule> every_;
  std::map<int64_t, KeepRule> blocks_;
};

}  // namespace moesaic
