// SPDX-License-Identifier: Apache-2.0
// Help of settings as text.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <span>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/text.h"
#include "moesaic/config/schema.h"

namespace moesaic {
namespace {

using Parts = std::span<const std::string>;

bool stands_for_any(const std::string& part) {
  return part == "N" || part == "<name>";
}

bool is_number(const std::string& part) {
  return !part.empty() && std::all_of(part.begin(), part.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// Returns whether `path` leads to the setting or to a group of it. The number of an item may be
/// left out; with `named` it may also be a name, behind which more has to follow.
bool leads_to(Parts path, Parts key, bool named) {
  if (path.empty()) return true;
  if (key.empty()) return false;
  if (!stands_for_any(key.front())) {
    return path.front() == key.front() && leads_to(path.subspan(1), key.subspan(1), named);
  }
  const bool item = path.front() == key.front() || is_number(path.front());
  if (item || (named && path.size() > 1)) {
    if (leads_to(path.subspan(1), key.subspan(1), named)) return true;
  }
  return leads_to(path, key.subspan(1), named);
}

std::string without_items(const std::vector<std::string>& key) {
  std::string text;
  for (const std::string& part : key) {
    if (!stands_for_any(part)) text = config_detail::join_path(text, part);
  }
  return text;
}

std::string details(const config_detail::HelpRow& row) {
  std::string text = row.type;
  // The settings of an object have lines of their own, which tell their defaults.
  const std::string preset = row.preset.starts_with("{\"") ? "an object" : row.preset;
  text += preset == "required" ? ", required" : fmt::format(", {} by default", preset);
  return row.allowed.empty() ? text : fmt::format("{}; {}", text, row.allowed);
}

/// Returns the words that fit in so many columns.
std::string start_of(const std::string& text, size_t columns) {
  if (count_characters(text) <= columns) return text;
  std::string start = wrapped(text, columns - 4, "");
  start.resize(start.find('\n'));
  return start + " ...";
}

constexpr size_t kColumns = 100;

/// Returns the rows of short help: none of a list within a list.
HelpRows common_rows(const HelpRows& rows) {
  HelpRows found;
  for (const config_detail::HelpRow& row : rows) {
    const bool nested = row.key.find(".N.") != row.key.rfind(".N.");
    if (row.common && !nested) found.push_back(row);
  }
  return found;
}

}  // namespace

HelpRows rows_about(const HelpRows& rows, const std::string& path) {
  const std::vector<std::string> parts = split(path, '.');
  std::vector<std::string> known;
  for (const bool named : {false, true}) {
    HelpRows found;
    for (const config_detail::HelpRow& row : rows) {
      const std::vector<std::string> key = split(row.key, '.');
      if (leads_to(parts, key, named)) found.push_back(row);
      for (size_t n = 1; n <= key.size(); ++n) {
        known.push_back(without_items({key.begin(), key.begin() + static_cast<std::ptrdiff_t>(n)}));
      }
    }
    if (!found.empty()) return found;
  }
  // A part of a key alone, a setting or a group of them, or else a word: "threads".
  for (const bool words : {false, true}) {
    if (words && nearest(path, known)) break;
    HelpRows found;
    for (const config_detail::HelpRow& row : rows) {
      std::string key = "." + without_items(split(row.key, '.')) + ".";
      if (words) std::replace(key.begin(), key.end(), '_', '.');
      if (key.find("." + path + ".") != std::string::npos) found.push_back(row);
    }
    if (!found.empty()) return found;
  }
  fail_usage("no setting '{}'; {}", one_line(path), did_you_mean(path, known));
}

std::string help_text(const HelpRows& rows) {
  std::string text;
  for (const config_detail::HelpRow& row : rows) {
    const std::string head = row.key + "  ", indent = "    ";
    const size_t room = kColumns - indent.size();
    text += wrapped(head + details(row), room, indent) + "\n";
    if (!row.meaning.empty()) text += indent + wrapped(row.meaning, room, indent) + "\n";
  }
  return text;
}

std::string common_help(const HelpRows& rows) {
  const HelpRows shown = common_rows(rows);
  size_t key = 0, preset = 0;
  for (const config_detail::HelpRow& row : shown) {
    key = std::max(key, count_characters(row.key));
    preset = std::max(preset, count_characters(row.preset));
  }
  std::string text;
  for (const config_detail::HelpRow& row : shown) {
    const std::string line = fmt::format("  {:<{}}  {:<{}}  ", row.key, key, row.preset, preset);
    text += line + start_of(row.meaning, kColumns - count_characters(line)) + "\n";
  }
  return text;
}

}  // namespace moesaic
