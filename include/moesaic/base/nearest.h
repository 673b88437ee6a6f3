// SPDX-License-Identifier: Apache-2.0
// Turns a misspelt name into a helpful line.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace moesaic {

/// Damerau-Levenshtein distance (optimal string alignment): insertions, deletions, substitutions
/// and swaps of neighbours, each at cost 1; upper and lower case count as equal.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate that was probably meant: within a third of its letters by edit_distance, or else
/// an abbreviation ("learning_rate" and "lr") or a beginning ("weight" and "weight_decay") of one
/// another. The first one wins a tie; nothing when none is close.
std::optional<std::string> nearest(std::string_view name, std::span<const std::string> candidates);

/// "did you mean 'x'?" when a candidate is near, else "choose one of a, b, c"; "" without
/// candidates.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

}  // namespace moesaic
