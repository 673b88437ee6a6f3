// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/config/value.h"

namespace moesaic {

/// An inconsistency between settings ("" if there is none) and the offending settings, as dotted
/// paths below the struct. The error points at one of these, preferably at one given on the command
/// line, since that is what changed last.
struct ConfigProblem {
  ConfigProblem() = default;
  /// `what` says what is wrong, "" nothing; `at` are the paths of the offending settings.
  // NOLINTNEXTLINE(google-explicit-constructor): A text is a problem of the whole struct.
  ConfigProblem(std::string what, std::vector<std::string> at = {})
      : text(std::move(what)), offending(std::move(at)) {}

  /// Returns whether nothing is wrong.
  bool empty() const { return text.empty(); }

  std::string text;
  std::vector<std::string> offending;
  /// Values that turn mutually exclusive settings off, one for each of `offending`; else empty.
  std::vector<std::string> off_values;
};

/// Returns the first problem that is not empty.
ConfigProblem first_problem(std::initializer_list<ConfigProblem> problems);

/// A setting and the value that is equivalent to leaving it out.
struct OptionalSetting {
  std::string name, off;
};

/// Returns the problem that both settings are given. The error says how to turn off the one that
/// was not given on the command line; if neither was, it points at `second`.
ConfigProblem mutually_exclusive(const OptionalSetting& first, const OptionalSetting& second);

/// Returns whether the setting (a dotted path below `config`) was given on the command line.
bool is_argument(const Value& config, const std::string& path);

/// Returns the command-line arguments that values in the configuration come from, as messages name
/// them: "argument 'a.b=value'".
std::set<std::string> arguments_in(const Value& config);

/// Returns the origin of the first of `offending` that came from the command line, else of the
/// first that exists, else of `config`. Paths are dotted, below `config`, with list items by index;
/// the last key may contain dots. A path that ends in ':' means the position of the key, not of its
/// value.
std::string location_of(const Value& config, const std::vector<std::string>& offending);

}  // namespace moesaic
