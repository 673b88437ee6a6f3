// SPDX-License-Identifier: Apache-2.0
// Regular expressions from untrusted files: for any pattern, search time is linear in the length of
// the text and memory is bounded.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace re2 {
class RE2;
}

namespace moesaic {

/// A match: the whole text, then each group, with null data if it did not participate.
using MatchGroups = std::vector<std::string_view>;

/// A compiled regular expression in RE2's syntax. Copies share it; it is safe to use from any
/// number of threads.
class Pattern {
 public:
  /// Throws Error (usage) with problem(text) if the pattern is invalid.
  explicit Pattern(const std::string& text);

  /// Returns one line that says why `text` is not a valid pattern: its syntax, more than 1000
  /// characters (which could exhaust the stack), or too much memory. Returns "" if it is valid.
  static std::string problem(const std::string& text);

  /// Returns the number of groups in parentheses.
  std::size_t num_groups() const;
  /// Returns whether the pattern matches anywhere in `text`.
  bool matches(std::string_view text) const;
  /// Returns the first match from `begin` on as views into `text`. Empty if there is no match.
  MatchGroups find(std::string_view text, std::size_t begin = 0) const;

 private:
  std::shared_ptr<const re2::RE2> expression_;
};

/// Returns a replacement in the notation of Python's re.sub() with the groups of a match in their
/// places, given by number or as `g<number>`. Throws Error (usage) that begins with `where` for
/// another backslash and for a group that the match lacks.
std::string substitute_groups(const std::string& replacement, const MatchGroups& groups,
                              const std::string& where);
/// Returns the name with every match of the pattern replaced by such a replacement.
std::string renamed(const Pattern& pattern, const std::string& replacement,
                    const std::string& name);

/// A list of compiled patterns.
class Patterns {
 public:
  /// Throws Error (usage) if a pattern is invalid, as Pattern does.
  explicit Patterns(const std::vector<std::string>& texts) : list_(texts.begin(), texts.end()) {}

  /// Returns whether there is no pattern.
  bool empty() const { return list_.empty(); }
  /// Returns whether any pattern matches anywhere in `text`.
  bool any_matches(std::string_view text) const { return first_match(text).has_value(); }
  /// Returns the index of the first pattern that matches.
  std::optional<std::size_t> first_match(std::string_view text) const;

 private:
  std::vector<Pattern> list_;
};

}  // namespace moesaic
