// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <regex>
#include <set>
#include <string>

namespace moesaic::testing {

/// Returns the first symbol of a formula, such as "k", "e_i" or "eta", that stands neither directly
/// behind the noun that it names ("number of experts (k)") nor behind that place; else "".
inline std::string bare_symbol_in(const std::string& text) {
  static const std::regex token(R"(\w+([-.^_'/]+\w+)*)");
  static const std::regex symbol(
      "[b-wyzA-Z]|[A-Za-z]{1,2}[_^]+\\w{1,2}|(eta|sigma|zeta|rho)(_\\w)?");
  static const std::regex noun(
      "(?!(and|with|for|per|are|than|from|into|over|times|each|every|another|the|has|have|that|"
      "where|which|all|both|log|sqrt|exp)$)[\\w'/-]*[a-z]{2}[\\w'/-]*");
  static const std::regex apposition(",? \\(?|: ");
  std::set<std::string> defined;
  std::string before;
  size_t end = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), token), none; it != none; ++it) {
    const std::string word = it->str(), name = word.substr(0, word.find_first_of("_^"));
    const auto begin = static_cast<size_t>(it->position());
    if (std::regex_match(word, symbol) && !defined.contains(name)) {
      const std::string between = text.substr(end, begin - end);
      const bool is_noun = before.size() > 2 && std::regex_match(before, noun);
      if (!is_noun || !std::regex_match(between, apposition)) return word;
      defined.insert(name);
    }
    before = word;
    end = begin + word.size();
  }
  return "";
}

/// Returns whether a second sentence begins in the text: a period before a space and a letter,
/// except after an ellipsis and after "e.g", "i.e", "eq" and "vs".
inline bool has_two_sentences(const std::string& text) {
  static const std::regex period(R"((\S*)\.\s+[A-Za-z])"), abbreviation(R"(\W*(e\.g|i\.e|eq|vs))");
  for (std::sregex_iterator it(text.begin(), text.end(), period), none; it != none; ++it) {
    const std::string word = (*it)[1];
    if (!word.ends_with('.') && !std::regex_match(word, abbreviation)) return true;
  }
  return false;
}

/// Returns why a text of help does not stand alone, or "". The names of choices that help puts
/// before the meaning of their settings ("patch_sgd: ") do not count. The text of a setting whose
/// default, as JSON, is an empty string, list or object says what empty means.
inline std::string fault_of(const std::string& description, const std::string& default_value = "") {
  static const std::regex choices("^([a-z0-9_-]+: )+");
  static const std::regex word(R"([a-z][\w'./-]+[:,]?( .*)?)"), words(R"((\S+ ){2,}\S+)");
  static const std::regex fragment(
      R"((\w+, )?(of|or|and|but|so|by|for|to|in place of|instead of|what|which|who|whose|whether|how|it|they|)"
      R"(those|these|a|an|the) .*)");
  const std::string text = std::regex_replace(description, choices, "");
  if (!std::regex_match(text, words)) return "has less than three words";
  if (!std::regex_match(text, word)) return "does not begin with a lower-case word";
  if (std::regex_match(text, fragment)) return "is a fragment";
  if (text.ends_with('.') && !text.ends_with("...")) return "ends with a period";
  if (has_two_sentences(text)) return "has two sentences";
  static const std::set<std::string> empty_values = {R"("")", "[]", "{}"};
  if (empty_values.contains(default_value) && text.find("empty") == std::string::npos) {
    return "does not say what empty means";
  }
  const std::string symbol = bare_symbol_in(text);
  return symbol.empty() ? "" : "has the bare symbol " + symbol;
}

}  // namespace moesaic::testing
