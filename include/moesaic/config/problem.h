// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moesaic/config/value.h"

namespace moesaic {

/// What is wrong with settings that depend on one another, "" if nothing is, and which of them are
/// to blame, as dotted paths below the struct. An error then points at one of these: at one that
/// was given on the command line if there is one, since that is what changed last.
struct ConfigProblem {
  ConfigProblem() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a text is a problem of the whole struct
  ConfigProblem(std::string what, std::vector<std::string> at = {})
      : text(std::move(what)), blamed(std::move(at)) {}

  bool empty() const { return text.empty(); }

  std::string text;
  std::vector<std::string> blamed;
  std::vector<std::string> off;  ///< of settings that exclude one another: what turns each off
};

/// A setting and the value that is the same as leaving it out.
struct OptionalSetting {
  std::string name, off;
};

/// What is wrong where both are given. The error tells how to turn the one off that was not given
/// on the command line; where neither was, it points at `second`.
ConfigProblem excluding(const OptionalSetting& first, const OptionalSetting& second);

/// Was the setting (a dotted path below `config`) given on the command line?
bool is_argument(const Value& config, const std::string& path);

/// Where the first of `blamed` (dotted paths below `config`, items of lists by number) was written
/// that came from the command line, else the first that is there, else `config` itself. The last
/// name of a path may hold dots. A path that ends in ':' is the place of the key, not of its value.
std::string place_of(const Value& config, const std::vector<std::string>& blamed);

}  // namespace moesaic
