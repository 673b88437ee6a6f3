// SPDX-License-Identifier: Apache-2.0
// Suggestions for misspelt names and wrong numbers. Names may also differ and look the same:
// composed and decomposed letters (NFC, NFD), spaces of other kinds or around the name, letters of
// other alphabets, marks without a width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moesaic {

/// Returns whether two different texts may look the same. The answer is a guess for messages,
/// without Unicode's tables. Letters beyond ASCII count as alike where only one of both is ASCII or
/// composed, if at least half of all letters are equal.
bool looks_alike(std::string_view a, std::string_view b);

/// Returns the pairs of names that look alike, each once and by index. Every pair is compared: of
/// more than 1000 names none is returned.
std::vector<std::pair<std::size_t, std::size_t>> lookalikes(std::span<const std::string> names);

/// Returns the names as a list shows them to a reader: those that look like another one are
/// spelled_out().
std::vector<std::string> disambiguated(std::vector<std::string> names);

/// Returns the text with spaces around it and every character beyond ASCII as its code point:
/// `caf\u{e9}`.
std::string spelled_out(std::string_view text);

/// Returns the Damerau-Levenshtein distance (optimal string alignment): insertions, deletions,
/// substitutions and transpositions of neighbours cost 1 each; case is ignored.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate that was probably meant: one that has the name behind a slash ("table1"
/// and "clusters/table1") or looks the same; else one whose edit_distance is within a third of its
/// length; else an abbreviation ("learning_rate" and "lr") or a prefix ("weight" and
/// "weight_decay", misspelt too). A name without a slash is also compared with what follows a
/// candidate's last slash. The first candidate wins a tie; std::nullopt if none is close.
std::optional<std::string> nearest(std::string_view name, std::span<const std::string> candidates);

/// Returns the divisor of `number` that is nearest to `wanted`, the smaller of two.
int64_t nearest_divisor(int64_t number, int64_t wanted);

/// Returns "did you mean 'x'?" if a candidate is near, with the code points of both where they look
/// alike, else "choose one of a, b, c", or "" if there are no candidates.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

/// Returns a line in which "did you mean X?" became "the nearest is X", so that it can go on.
std::string as_statement(std::string line);

}  // namespace moesaic
