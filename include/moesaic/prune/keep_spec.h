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

/// A bound on the parameters of the whole network, from which counts follow.
struct KeepParameters {
  double fraction = 1.0;  ///< Of all its parameters, in (0, 1].
};

/// What one layer keeps, or all layers together, and where that was specified (for messages).
struct KeepRule {
  std::variant<KeepFraction, KeepCount, KeepIds, KeepParameters> amount;
  std::string where;

  /// Returns the number of experts to keep of `experts`: a fraction is rounded to the nearest
  /// number, halves up, and gives at least 1.
  int64_t count(int64_t experts) const;
  /// Returns the list of experts, or nullptr if the rule is something else.
  const std::vector<int64_t>* ids() const;
  /// Returns the fraction of parameters, or nullptr if the rule is something else.
  const double* parameters() const;
};

/// Among which experts a rule chooses: those of a layer (in an ensemble, of each member), or those
/// of all layers together, by scores that are compared as they are.
enum class KeepScope { layer, network };

std::vector<std::string> keep_scope_names();

/// Either one rule for all layers, or rules for some blocks; the other layers stay unchanged.
class KeepSpec {
 public:
  /// Parses "0.25" as a fraction (any number with a point or an exponent), "4" as a count, and
  /// anything else as the path of a JSON file {"<block>": count | [ids], ...}. Throws Error
  /// (usage), for a file with line and column. `where` is the origin of the text if it is not the
  /// command line.
  static KeepSpec parse(const std::string& text, const std::string& where = {});
  /// Reads a KeepSpec from a configuration: a number with a fraction, an integer, a string for
  /// parse(), an object of blocks as in such a file, or an object {"fraction", "count" or
  /// "parameters": number, "scope": "layer" or "network", "whole": [blocks]}.
  static KeepSpec from_value(const Value& value);

  /// Keeps every expert.
  static KeepSpec keep_all() { return {}; }
  static KeepSpec fraction(double fraction);
  static KeepSpec count(int64_t count);
  /// Keeps as many experts as fit into this fraction of the network's parameters, the same number
  /// in every layer or, in the scope of the network, those of highest score.
  static KeepSpec parameters(double fraction, const std::string& where = "keep");

  /// Lets the rule for all layers choose among experts of this scope. Throws Error (usage) where
  /// there are rules for blocks.
  void set_scope(KeepScope scope);
  /// Leaves these blocks unchanged. Likewise.
  void leave_whole(std::vector<int64_t> blocks);

  KeepScope scope() const { return scope_; }
  const std::vector<int64_t>& whole() const { return whole_; }
  /// Returns the rule of a block, or nullptr if the block stays unchanged.
  const KeepRule* rule_of(int64_t block) const;
  /// Returns the rule for all layers together, or nullptr if each layer has its own.
  const KeepRule* rule_of_network() const;
  /// Returns whether the experts of one layer depend on those of others: a rule for all layers
  /// together, or a bound on all parameters.
  bool chooses_among_layers() const {
    return every_ && (scope_ == KeepScope::network || every_->parameters() != nullptr);
  }
  /// Throws Error (usage) with the position of a rule whose block is not among `blocks`.
  void check_blocks(const std::vector<int64_t>& blocks) const;

 private:
  static KeepSpec of_blocks(const Value& object);
  static KeepSpec of_settings(const Value& object);

  std::optional<KeepRule> every_;
  std::map<int64_t, KeepRule> blocks_;
  KeepScope scope_ = KeepScope::layer;
  std::vector<int64_t> whole_;
};

}  // namespace moesaic
