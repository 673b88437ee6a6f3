// SPDX-License-Identifier: Apache-2.0
// Suggestions for misspelt names.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace moesaic {

/// Returns the Damerau-Levenshtein distance (optimal string alignment): insertions, deletions,
/// substitutions and transpositions of neighbours cost 1 each; case is ignored.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate that was probably meant: one that has the name behind a slash ("table1"
/// and "clusters/table1") or looks the same (base/lookalike.h), else one whose edit_distance is
/// within a third of its length, or else an abbreviation ("learning_rate" and "lr") or a prefix
/// ("weight" and "weight_decay") of one another. The first candidate wins a tie; std::nullopt if
/// none is close.
std::optional<std::string> nearest(std::string_view name, std::span<const std::string> candidates);

/// Returns "did you mean 'x'?" if a candidate is near, with the code points of both where they look
/// alike, else "choose one of a, b, c", or "" if there are no candidates.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

}  // namespace moesaic
