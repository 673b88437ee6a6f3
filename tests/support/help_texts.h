// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <regex>
#include <string>

namespace moesaic::testing {

/// Returns why a text of help does not stand alone, or "". The names of choices that help puts
/// before the meaning of their settings ("patch_sgd: ") do not count.
inline std::string fault_of(const std::string& description) {
  static const std::regex choices("^([a-z0-9_-]+: )+");
  static const std::regex word(R"([a-z][\w'./-]+[:,]?( .*)?)"), words(R"((\S+ ){2,}\S+)");
  static const std::regex fragment(
      R"((\w+, )?(of|or|and|but|so|by|for|to|in place of|instead of|what|which|who|whose|whether|how|it|they|)"
      R"(those|these|a|an|the) .*)");
  const std::string text = std::regex_replace(description, choices, "");
  if (!std::regex_match(text, words)) return "has less than three words";
  if (!std::regex_match(text, word)) return "does not begin with a lower-case word";
  if (std::regex_match(text, fragment)) return "is a fragment";
  return text.ends_with('.') && !text.ends_with("...") ? "ends with a period" : "";
}

}  // namespace moesaic::testing
