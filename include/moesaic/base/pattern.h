// SPDX-License-Identifier: Apache-2.0
// Regular expressions out of files: whatever a pattern is, the time to search a text is linear in
// the text's length, and the memory is bounded.
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

/// A regular expression in RE2's syntax, compiled once. Copies share it; any number of threads may
/// search by it.
class Pattern {
 public:
  /// Throws Error (usage) with problem(text), if there is one.
  explicit Pattern(const std::string& text);

  /// One line that says why `text` is no pattern: its syntax, more than 1000 characters (which
  /// could exhaust the stack), or more memory than a pattern may take. "" where it is one.
  static std::string problem(const std::string& text);

  std::size_t groups() const;
  bool found_in(std::string_view text) const;
  /// The first place from `begin` on where it is found, as parts of `text`: the whole, then each
  /// group, without data where it took no part. Nothing where it is not found.
  std::vector<std::string_view> find(std::string_view text, std::size_t begin = 0) const;

 private:
  std::shared_ptr<const re2::RE2> expression_;
};

/// A list of patterns, each compiled once.
class Patterns {
 public:
  /// Throws as Pattern does.
  explicit Patterns(const std::vector<std::string>& texts) : list_(texts.begin(), texts.end()) {}

  bool empty() const { return list_.empty(); }
  bool any_found_in(std::string_view text) const { return first_found_in(text).has_value(); }
  /// Index of the first pattern that is found.
  std::optional<std::size_t> first_found_in(std::string_view text) const;

 private:
  std::vector<Pattern> list_;
};

}  // namespace moesaic
