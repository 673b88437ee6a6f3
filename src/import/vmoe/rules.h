// SPDX-License-Identifier: Apache-2.0
// Rules that map arrays of a checkpoint to parameters of a network and transform them, as
// google-research/vmoe starts fine-tuning.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "arrays.h"
#include "moesaic/config/value.h"

namespace moesaic {

enum class VMoETransform {
  copy,         ///< Keeps the values.
  vit_zoom,     ///< Resizes a position embedding to the target's grid.
  reshape,      ///< Reshapes to the target's shape, in C order.
  expand_tile,  ///< Inserts an axis and repeats along it.
};

struct VMoERule {
  std::string pattern;      ///< Regular expression (RE2), searched for in an array's name.
  std::string replacement;  ///< Replaces the match, with groups as \1; "" drops the array.
  VMoETransform transform = VMoETransform::copy;
  int64_t axis = 0, repeats = 1;  ///< Settings of expand_tile.
};

/// List of rules, of which the first whose pattern matches decides. New names start with "params/".
using VMoERules = std::vector<VMoERule>;

/// Returns rules that keep every array under its name.
VMoERules identity_rules();
/// Returns the rules of the released fine-tuning recipes: the head is dropped, the position
/// embedding resized, routers are reshaped for an ensemble.
VMoERules fine_tuning_rules();
/// Reads [[pattern, replacement], [pattern, replacement, "expand_tile", axis, repeats], ...].
/// Throws Error (usage) with the location of an invalid value.
VMoERules rules_from_value(const Value& value);

/// Source and transform of one array of the target.
struct VMoEMove {
  vmoe_checkpoint::Entry source;
  VMoERule rule;
  bool transforms = false;  ///< Whether values or shape differ from the source's.
};

struct VMoEPlan {
  std::map<std::string, VMoEMove> moves;  ///< Moves by the target's name, without "params/".
  std::vector<std::string> dropped;       ///< Arrays of the source that are not used.
  std::vector<std::string> fresh;         ///< Arrays of the target that no rule maps to.
  std::vector<std::string> transformed;   ///< Arrays of the target whose values the rules change.
};

/// Applies rules to names and shapes. Throws Error, in one line that starts with `from`, for an
/// array that no rule maps, whose new name the target lacks or another array has too, whose shape
/// does not fit, or whose dtype is not floating-point. `rules_from` is the file of the rules, for
/// messages; "" for built-in rules.
VMoEPlan plan_moves(const std::vector<vmoe_checkpoint::Entry>& source,
                    const std::vector<VMoETensor>& target, const VMoERules& rules,
                    const std::string& from, const std::string& rules_from = "");

/// Returns the values, in target.shape, that a move makes of its source's values.
at::Tensor moved(const VMoEMove& move, const at::Tensor& values, const VMoEArray& target);

}  // namespace moesaic
