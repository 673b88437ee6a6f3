// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/suggestions.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "moesaic/base/text.h"

namespace moesaic {
namespace {

/// Returns the code points of valid UTF-8.
std::u32string code_points(std::string_view text) {
  std::u32string points;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (!starts_character(c)) {
      points.back() = points.back() << 6 | (byte & 0x3Fu);
    } else {
      points += byte < 0x80 ? byte : byte & (byte < 0xE0 ? 0x1Fu : byte < 0xF0 ? 0x0Fu : 0x07u);
    }
  }
  return points;
}

bool is_space(char32_t c) {
  return c == ' ' || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

/// Returns the visible characters, each with the marks that follow it, without spaces around them.
std::vector<std::u32string> letters_of(std::string_view text) {
  std::vector<std::u32string> letters;
  for (const char32_t c : code_points(text)) {
    const bool is_mark = c >= 0x300 && c <= 0x36F;
    const bool is_invisible =
        c == 0xAD || (c >= 0x200B && c <= 0x200F) || c == 0x2060 || c == 0xFEFF;
    if (is_invisible || (is_space(c) && letters.empty())) continue;
    if (is_mark && !letters.empty()) {
      letters.back() += c;
    } else {
      letters.emplace_back(1, c);
    }
  }
  while (!letters.empty() && is_space(letters.back()[0])) letters.pop_back();
  return letters;
}

bool is_ascii(const std::u32string& letter) {
  return letter.size() == 1 && letter[0] < 0x80;
}

bool letters_look_alike(const std::u32string& a, const std::u32string& b) {
  if (a == b || (is_space(a[0]) && is_space(b[0]))) return true;
  if (is_ascii(a) || is_ascii(b)) return is_ascii(a) != is_ascii(b);
  return (a.size() == 1) != (b.size() == 1);
}

constexpr std::size_t kListed = 24;    // Further names are only counted.
constexpr std::size_t kLongest = 255;  // Longer names are near no other.

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool equal_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

bool begins_with(std::string_view text, std::string_view start) {
  constexpr std::size_t kShortest = 3;  // Shorter prefixes match nearly anything.
  return start.size() >= kShortest && text.size() > start.size() &&
         equal_letters(text.substr(0, start.size()), start);
}

/// Returns whether `name` is a misspelt beginning of a longer name, of one or more whole words.
bool begins_like(std::string_view full, std::string_view name) {
  if (name.size() > kLongest) return false;
  for (std::size_t end = full.find_first_of("-_."); end != full.npos;
       end = full.find_first_of("-_.", end + 1)) {
    const std::size_t limit = end / 4,
                      difference = end > name.size() ? end - name.size() : name.size() - end;
    if (difference <= limit && edit_distance(full.substr(0, end), name) <= limit) return true;
  }
  return false;
}

/// Returns whether `name` is what follows a slash in a longer name.
bool ends_with_part(std::string_view full, std::string_view name) {
  return !name.empty() && full.size() > name.size() + 1 &&
         full[full.size() - name.size() - 1] == '/' &&
         equal_letters(full.substr(full.size() - name.size()), name);
}

/// Returns the texts that a name may be near: a candidate and, where only it has a folder, what
/// follows the folder.
std::vector<std::string_view> spellings(std::string_view candidate, std::string_view name) {
  const std::size_t slash = candidate.rfind('/');
  if (slash == candidate.npos || name.find('/') != name.npos) return {candidate};
  return {candidate, candidate.substr(slash + 1)};
}

std::string initials(std::string_view name) {
  std::string letters;
  bool at_start = true;
  for (const char c : name) {
    const bool separator = c == '_' || c == '-' || c == '.' || c == ' ';
    if (at_start && !separator) letters += c;
    at_start = separator;
  }
  return letters;
}

bool abbreviates(std::string_view full, std::string_view brief) {
  return brief.size() >= 2 && brief.size() < full.size() && equal_letters(initials(full), brief);
}

/// Returns the distinct names in the order of their first occurrence.
std::vector<std::string_view> each_once(std::span<const std::string> names) {
  std::vector<std::string_view> list;
  std::set<std::string_view> seen;
  for (const std::string& name : names) {
    if (seen.insert(name).second) list.push_back(name);
  }
  return list;
}

}  // namespace

bool looks_alike(std::string_view a, std::string_view b) {
  if (a == b || find_invalid_utf8(a) || find_invalid_utf8(b)) return false;
  const std::vector<std::u32string> first = letters_of(a), second = letters_of(b);
  if (first.size() != second.size()) return false;
  size_t equal = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    if (!letters_look_alike(first[i], second[i])) return false;
    equal += first[i] == second[i] ? 1 : 0;
  }
  return 2 * equal >= first.size();
}

std::vector<std::pair<std::size_t, std::size_t>> lookalikes(std::span<const std::string> names) {
  constexpr std::size_t kMost = 1000;
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  if (names.size() > kMost) return pairs;
  const auto is_plain = [](const std::string& name) {
    return !name.starts_with(' ') && !name.ends_with(' ') &&
           std::all_of(name.begin(), name.end(), [](char c) { return (c & 0x80) == 0; });
  };
  std::vector<bool> plain;
  for (const std::string& name : names) plain.push_back(is_plain(name));
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (std::size_t j = i + 1; j < names.size(); ++j) {
      if (plain[i] && plain[j]) continue;
      if (looks_alike(names[i], names[j])) pairs.emplace_back(i, j);
    }
  }
  return pairs;
}

std::vector<std::string> disambiguated(std::vector<std::string> names) {
  std::set<std::size_t> doubtful;
  for (const auto& [i, j] : lookalikes(names)) doubtful.insert({i, j});
  for (const std::size_t i : doubtful) names[i] = spelled_out(names[i]);
  return names;
}

std::string spelled_out(std::string_view text) {
  if (find_invalid_utf8(text)) return escaped(text);
  const std::u32string points = code_points(text);
  const size_t first = points.find_first_not_of(U' '), last = points.find_last_not_of(U' ');
  std::string line;
  for (size_t i = 0; i < points.size(); ++i) {
    const char32_t c = points[i];
    if (c < 0x80 && (c != U' ' || (first < i && i < last))) {
      line += static_cast<char>(c);
    } else {
      line += fmt::format("\\u{{{:x}}}", static_cast<uint32_t>(c));
    }
  }
  return escaped(line);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                           lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::optional<std::string> nearest(std::string_view name, std::span<const std::string> candidates) {
  for (const std::string& candidate : candidates) {
    if (ends_with_part(candidate, name) || looks_alike(candidate, name)) return candidate;
  }
  const std::string* best = nullptr;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    for (const std::string_view spelling : spellings(candidate, name)) {
      const std::size_t longest = std::max(name.size(), spelling.size());
      const std::size_t limit = std::max<std::size_t>(1, longest / 3);
      const std::size_t shortest = std::min(name.size(), spelling.size());
      if (longest > kLongest || longest - shortest > limit)
        continue;  // A distance costs a product.
      const std::size_t distance = edit_distance(name, spelling);
      // A distance equal to the length means that the names have nothing in common.
      if (distance > limit || distance >= longest) continue;
      if (best == nullptr || distance < best_distance) {
        best = &candidate;
        best_distance = distance;
      }
    }
  }
  if (best != nullptr) return *best;
  const auto is_part = [&](std::string_view c) {
    return begins_with(name, c) || begins_with(c, name) || begins_like(c, name) ||
           abbreviates(name, c) || abbreviates(c, name);
  };
  const auto found = std::ranges::find_if(candidates, [&](const std::string& candidate) {
    return std::ranges::any_of(spellings(candidate, name), is_part);
  });
  if (found != candidates.end()) return *found;
  return std::nullopt;
}

int64_t nearest_divisor(int64_t number, int64_t wanted) {
  for (int64_t distance = 0; distance < wanted; ++distance) {
    if (number % (wanted - distance) == 0) return wanted - distance;
    if (number % (wanted + distance) == 0) return wanted + distance;
  }
  return 1;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) {
  if (candidates.empty()) return "";
  if (const auto meant = nearest(name, candidates)) {
    if (!looks_alike(*meant, name)) return fmt::format("did you mean '{}'?", *meant);
    return fmt::format("did you mean '{}' ({}, not {})?", *meant, spelled_out(*meant),
                       spelled_out(name));
  }
  const std::vector<std::string_view> names = each_once(candidates);
  std::vector<std::string> listed;
  for (const std::string_view one : std::span(names).first(std::min(kListed, names.size()))) {
    listed.push_back(one.find(',') == one.npos ? std::string(one) : fmt::format("'{}'", one));
  }
  std::string line = fmt::format("choose one of {}", fmt::join(listed, ", "));
  if (listed.size() < names.size()) line += fmt::format(", ... ({} in all)", names.size());
  return line;
}

std::string as_statement(std::string line) {
  constexpr std::string_view kQuestion = "did you mean ";
  const size_t at = line.find(kQuestion);
  if (at == std::string::npos || !line.ends_with('?')) return line;
  line.pop_back();
  return line.replace(at, kQuestion.size(), "the nearest is ");
}

}  // namespace moesaic
