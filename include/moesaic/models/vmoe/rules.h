// SPDX-License-Identifier: Apache-2.0
// Which array of a checkpoint becomes which parameter of a network, and what is done to it on the
// way: how google-research/vmoe begins fine-tuning.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "moesaic/config/value.h"
#include "moesaic/formats/vmoe_checkpoint.h"
#include "moesaic/models/vmoe/names.h"

namespace moesaic {

enum class VMoETransform {
  copy,         ///< as it is
  vit_zoom,     ///< a position embedding, resized to the target's grid
  reshape,      ///< to the target's shape, in C order
  expand_tile,  ///< a new axis, repeated
};

struct VMoERule {
  std::string pattern;      ///< a regular expression (RE2), searched for in an array's name
  std::string replacement;  ///< what the found part becomes, with groups as \1; "": is dropped
  VMoETransform transform = VMoETransform::copy;
  int64_t axis = 0, repeats = 1;  ///< of expand_tile
};

/// The first rule whose pattern is found decides. New names begin with "params/".
using VMoERules = std::vector<VMoERule>;

/// Every array under its own name.
VMoERules identity_rules();
/// What the released recipes do: the head is dropped, the position embedding resized, routers
/// reshaped for an ensemble.
VMoERules fine_tuning_rules();
/// [[pattern, replacement], [pattern, replacement, "expand_tile", axis, repeats], ...]. Throws
/// Error(usage) with the place of what is wrong.
VMoERules rules_from_value(const Value& value);

/// A position embedding [1, T, d] for T' tokens. The rows of a square grid are interpolated
/// linearly with aligned corners along both axes: output k of n reads at k * ((s - 1) / (n - 1)) of
/// s, computed in float64, and is 0 where rounding takes that past s - 1, as the reference's is. A
/// class token's row in front, which the length tells, is copied, or dropped where T' has none.
/// Of equal lengths nothing changes, whatever the grid.
/// Throws Error(usage) for lengths that are no square, with or without 1, and where only T' has a
/// class token.
at::Tensor vit_zoom(const at::Tensor& embedding_1Td, int64_t tokens);

/// Where one array of the target comes from.
struct VMoEMove {
  vmoe_checkpoint::Entry source;
  VMoERule rule;

  /// Are the values other than the source's, or elsewhere?
  bool transforms(const VMoEArray& target) const;
};

struct VMoEPlan {
  std::map<std::string, VMoEMove> moves;  ///< by the target's name, without "params/"
  std::vector<std::string> dropped;       ///< arrays of the source
  std::vector<std::string> fresh;         ///< arrays of the target that nothing maps to
};

/// Applies rules to names and shapes. Throws Error, in one line begun by `from`: for an array that
/// no rule maps, whose new name the target does not have or another array has too, whose shape does
/// not fit, or which holds no floating-point numbers.
/// `rules_from` is the rules' file, which messages about the rules then name; "" where they are
/// built in.
VMoEPlan plan_moves(const std::vector<vmoe_checkpoint::Entry>& source,
                    const std::vector<VMoETensor>& target, const VMoERules& rules,
                    const std::string& from, const std::string& rules_from = "");

/// The values [target.shape] that a move makes of its source's.
at::Tensor moved(const VMoEMove& move, const at::Tensor& values, const VMoEArray& target);

}  // namespace moesaic
