// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/pattern.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <cstdint>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

constexpr std::size_t kMaxPattern = 1000;

/// Returns what is wrong with an expression. RE2's message ends with the offending part.
std::string problem_of(const re2::RE2& expression) {
  if (expression.ok()) return "";
  std::string words = expression.error(), part;
  const std::string end = fmt::format(": {}", expression.error_arg());
  if (words.ends_with(end)) {
    words.resize(words.size() - end.size());
    part = fmt::format(" {}", printable(expression.error_arg()));
  }
  return fmt::format("{} is not a valid regular expression: {}{}", printable(expression.pattern()),
                     words, part);
}

}  // namespace

Pattern::Pattern(const std::string& text) {
  if (text.size() > kMaxPattern) {
    fail_usage("a pattern of {} characters; at most {} are allowed", text.size(), kMaxPattern);
  }
  constexpr int64_t kMaxBytes = 8 << 20;
  re2::RE2::Options options(re2::RE2::Quiet);
  options.set_max_mem(kMaxBytes);
  expression_ = std::make_shared<const re2::RE2>(text, options);
  const std::string problem = problem_of(*expression_);
  if (!problem.empty()) fail_usage("{}", problem);
}

std::string Pattern::problem(const std::string& text) {
  try {
    const Pattern valid(text);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::size_t Pattern::num_groups() const {
  return static_cast<std::size_t>(expression_->NumberOfCapturingGroups());
}

bool Pattern::matches(std::string_view text) const {
  return re2::RE2::PartialMatch(re2::StringPiece(text.data(), text.size()), *expression_);
}

MatchGroups Pattern::find(std::string_view text, std::size_t begin) const {
  std::vector<re2::StringPiece> found(num_groups() + 1);
  const bool any =
      begin <= text.size() &&
      expression_->Match(re2::StringPiece(text.data(), text.size()), begin, text.size(),
                         re2::RE2::UNANCHORED, found.data(), static_cast<int>(found.size()));
  MatchGroups parts;
  if (!any) return parts;
  for (const re2::StringPiece& part : found) parts.emplace_back(part.data(), part.size());
  return parts;
}

std::string substitute_groups(const std::string& replacement, const MatchGroups& groups,
                              const std::string& where) {
  static const Pattern kGroup(R"(\\(?:g<(\d{1,2})>|(\d{1,2})|(\\)|.?))");
  std::string text;
  size_t end = 0;
  for (MatchGroups found; !(found = kGroup.find(replacement, end)).empty();) {
    const auto begin = static_cast<size_t>(found[0].data() - replacement.data());
    text += replacement.substr(end, begin - end);
    end = begin + found[0].size();
    if (!found[3].empty()) {
      text += '\\';
      continue;
    }
    const std::string number(found[1].empty() ? found[2] : found[1]);
    if (number.empty()) {
      fail_usage("{}: a '\\' in a replacement must come before a group's number or another '\\'",
                 where);
    }
    const size_t group = std::stoul(number);
    if (group >= groups.size()) {
      fail_usage("{}: '{}' names group {}, the pattern has {}", where, replacement, group,
                 groups.size() - 1);
    }
    text += groups[group];
  }
  return text + replacement.substr(end);
}

std::string renamed(const Pattern& pattern, const std::string& replacement,
                    const std::string& name) {
  std::string text;
  size_t end = 0, next = 0;
  for (MatchGroups found; !(found = pattern.find(name, next)).empty();) {
    const auto place = static_cast<size_t>(found[0].data() - name.data());
    text += name.substr(end, place - end) + substitute_groups(replacement, found, "rules");
    end = place + found[0].size();
    next = found[0].empty() ? end + 1 : end;
  }
  return text + name.substr(end);
}

std::optional<std::size_t> Patterns::first_match(std::string_view text) const {
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (list_[i].matches(text)) return i;
  }
  return std::nullopt;
}

}  // namespace moesaic
