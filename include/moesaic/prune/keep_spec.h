// SPDX-License-Identifier: Apache-2.0
// How many experts to keep, as specified by the user.
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
  double fraction = 1.0;  ///< Of a layer's experts, in an ensemble of a member's, in (0, 1].
};
struct KeepCount {
  int64_t count = 0;  ///< Likewise.
};
struct KeepIds {
  std::vector<int64_t> ids;  ///< Expert indices, ascending, counted over all members.
};

/// What one layer keeps, and where that was specified (for messages).
struct KeepRule {
  std::variant<KeepFraction, KeepCount, KeepIds> amount;
  std::string where;

  /// Returns the number of experts to keep of `experts`: a fraction is rounded to the nearest
  /// number, halves up, and gives at least 1.
  int64_t count(int64_t experts) const;
  /// Returns the list of experts, or nullptr if the rule is a fraction or a count.
  const std::vector<int64_t>* ids() const;
};

/// Either one rule for all layers, or rules for some blocks; the other layers stay unchanged.
class KeepSpec {
 public:
  /// Parses "0.25" as a fraction (any number with a point or an exponent), "4" as a count, and
  /// anything else as the path of a JSON file {"<block>": count | [ids], ...}. Throws Error
  /// (usage), for a file with line and column. `where` is the origin of the text if it is not the
  /// command line.
  static KeepSpec parse(const std::string& text, const std::string& where = {});
  /// Reads a KeepSpec from a configuration: a number with a fraction, an integer, an object, or a
  /// string for parse().
  static KeepSpec from_value(const Value& value);

  static KeepSpec fraction(double fraction);
  static KeepSpec count(int64_t count);

  /// Returns the rule of a block, or nullptr if the block stays unchanged.
  const KeepRule* rule_of(int64_t block) const;
  /// Throws Error (usage) with the position of a rule whose block is not among `blocks`.
  void check_blocks(const std::vector<int64_t>& blocks) const;

 private:
  std::optional<KeepRule> every_;
  std::map<int64_t, KeepRule> blocks_;
};

}  // namespace moesaic
