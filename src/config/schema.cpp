// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "moesaic/base/checked_math.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

const char* unit_name(Interval::Unit unit) {
  return unit == Interval::Unit::steps ? "step" : "epoch";
}

using Parts = std::span<const std::string>;

bool stands_for_any(std::string_view part) {
  return part == "N" || part == "<name>";
}

/// Returns whether `path` leads to the setting or to a group of it. The number of an item may be
/// left out; with `named` it may also be a name, behind which more has to follow.
bool leads_to(Parts path, Parts key, bool named) {
  if (path.empty()) return true;
  if (key.empty()) return false;
  if (!stands_for_any(key.front())) {
    return path.front() == key.front() && leads_to(path.subspan(1), key.subspan(1), named);
  }
  const bool item = path.front() == key.front() || is_digits(path.front());
  if (item || (named && path.size() > 1)) {
    if (leads_to(path.subspan(1), key.subspan(1), named)) return true;
  }
  return leads_to(path, key.subspan(1), named);
}

/// Returns the path of the parts that `drops` does not tell to leave out.
std::string path_without(bool (*drops)(std::string_view), std::vector<std::string> parts) {
  std::erase_if(parts, drops);
  return fmt::format("{}", fmt::join(parts, "."));
}

HelpRows rows_where(HelpRows rows, const auto& is_meant) {
  std::erase_if(rows, [&](const config_detail::HelpRow& row) { return !is_meant(row); });
  return rows;
}

/// Returns the parts of a setting's key, and those with its former and other names.
std::vector<std::vector<std::string>> keys_of(const config_detail::HelpRow& row) {
  std::vector<std::vector<std::string>> keys = {split(row.key, '.')};
  for (const auto* names : {&row.former_keys, &row.other_names}) {
    for (const std::string& name : *names) {
      keys.push_back(keys.front());
      keys.back().back() = name;
    }
  }
  return keys;
}

/// Returns whether the key of a setting, or one of its other names, ends with these parts.
bool ends_with_key(const config_detail::HelpRow& row, const std::string& name) {
  const auto ends = [&](const std::vector<std::string>& key) {
    return fmt::format("{}", fmt::join(key, ".")).ends_with("." + name);
  };
  return std::ranges::count(row.other_names, name) > 0 || std::ranges::any_of(keys_of(row), ends);
}

std::string details(const config_detail::HelpRow& row) {
  std::string text = row.type;
  // The settings of an object have lines of their own, which tell their defaults.
  const std::string default_value =
      row.default_value.starts_with("{\"") ? "an object" : row.default_value;
  text +=
      default_value == "required" ? ", required" : fmt::format(", {} by default", default_value);
  return row.allowed.empty() ? text : fmt::format("{}; {}", text, row.allowed);
}

/// Returns the phrases, which end at semicolons, or else the part before a colon or comma, or else
/// the words, that fit in so many columns.
std::string start_of(const std::string& text, size_t columns) {
  if (count_characters(text) <= columns) return text;
  for (const char* mark : {"; ", ": ", ", "}) {
    const size_t end = text.rfind(mark, columns);
    if (end != std::string::npos) return text.substr(0, end);
  }
  std::string start = wrapped(text, columns - 4, "");
  start.resize(start.find('\n'));
  return start + " ...";
}

constexpr size_t kColumns = 100;

}  // namespace

bool Interval::is_completed_by(int64_t steps, int64_t run_step, int64_t phase_step,
                               int64_t steps_per_epoch) const {
  if (count == 0) return false;
  const bool epochs = unit == Unit::epochs;
  const auto each = checked_mul(static_cast<uint64_t>(count),
                                static_cast<uint64_t>(epochs ? steps_per_epoch : 1));
  if (!each || *each == 0 || *each > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return false;
  }
  const auto every = static_cast<int64_t>(*each);
  const int64_t now = epochs ? phase_step : run_step;
  return (now - steps) / every != now / every;
}

std::string to_text(const Interval& interval) {
  return count_text(interval.count, unit_name(interval.unit));
}

HelpRows help_rows_at(const HelpRows& rows, const std::string& path) {
  const std::vector<std::string> parts = split(path, '.');
  std::vector<std::string> known, full;  // Paths without and with what stands for an item.
  for (const bool named : {false, true}) {
    HelpRows found;
    for (const config_detail::HelpRow& row : rows) {
      const auto keys = keys_of(row);
      const auto leads = [&](const auto& key) { return leads_to(parts, key, named); };
      if (std::any_of(keys.begin(), keys.end(), leads)) found.push_back(row);
      const std::vector<std::string>& key = keys.front();
      for (size_t n = 1; n <= key.size(); ++n) {
        const Parts group = Parts(key).first(n);
        known.push_back(path_without(stands_for_any, {group.begin(), group.end()}));
        full.push_back(fmt::format("{}", fmt::join(group, ".")));
      }
    }
    if (!found.empty()) return found;
  }
  // A part of a key alone, a setting or a group of them, or else a word: "threads".
  for (const bool words : {false, true}) {
    if (words && nearest(path, known)) break;
    const auto has_part = [&](const std::vector<std::string>& key_parts) {
      std::string key = "." + path_without(stands_for_any, key_parts) + ".";
      if (words) std::replace(key.begin(), key.end(), '_', '.');
      return key.find("." + path + ".") != std::string::npos;
    };
    const HelpRows found = rows_where(
        rows, [&](const auto& row) { return std::ranges::any_of(keys_of(row), has_part); });
    if (!found.empty()) return found;
  }
  // The last part is the beginning of a setting's, or near it, unless the group is misspelt.
  const HelpRows called = help_rows_matching(rows, parts.back());
  const auto meant = std::ranges::find_if(called, [&](const config_detail::HelpRow& row) {
    return row.key.starts_with(parts.front() + ".") && !row.key.ends_with("." + parts.back());
  });
  std::string hint = "moesaic list settings lists all";
  if (meant != called.end()) {
    hint = fmt::format("did you mean '{}'?", meant->key);
  } else if (const auto near = nearest(path, known)) {
    const auto place = std::ranges::find(known, *near) - known.begin();
    hint = fmt::format("did you mean '{}'?", full[static_cast<size_t>(place)]);
  }
  fail_usage("unknown key '{}'; {}", one_line(path), hint);
}

HelpRows help_rows_matching(const HelpRows& rows, const std::string& name) {
  constexpr size_t kShortest = 3;  // Shorter beginnings match nearly anything.
  const auto last_of = [](const auto& row) { return row.key.substr(row.key.rfind('.') + 1); };
  std::vector<std::string> outer, last;
  for (const config_detail::HelpRow& row : rows) {
    outer.push_back(row.key.substr(0, row.key.find('.')));
    last.push_back(last_of(row));
  }
  const HelpRows inner =
      rows_where(rows, [](const auto& row) { return row.key.find('.') != std::string::npos; });
  HelpRows found = rows_where(rows, [&](const auto& row) {
    return row.key.ends_with("." + name) || std::ranges::count(row.other_names, name) > 0;
  });
  if (!found.empty()) return found;
  found = rows_where(rows, [&](const auto& row) { return ends_with_key(row, name); });
  if (!found.empty() || name.size() < kShortest || nearest(name, outer)) return found;
  found = rows_where(inner, [&](const auto& row) { return last_of(row).starts_with(name); });
  if (!found.empty()) return found;
  const auto near = nearest(name, last);
  return rows_where(inner, [&](const auto& row) { return last_of(row) == near; });
}

std::string help_text(const HelpRows& rows) {
  std::string text;
  for (const config_detail::HelpRow& row : rows) {
    const std::string head = row.key + "  ", indent = "    ";
    const size_t room = kColumns - indent.size();
    text += wrapped(head + details(row), room, indent) + "\n";
    if (!row.description.empty()) text += indent + wrapped(row.description, room, indent) + "\n";
  }
  return text;
}

std::string common_help(const HelpRows& rows) {
  const HelpRows shown = rows_where(rows, [](const config_detail::HelpRow& row) {
    const bool nested = row.key.find(".N.") != row.key.rfind(".N.");  // A list within a list.
    return row.is_common && !nested;
  });
  size_t key = 0, default_value = 0;
  for (const config_detail::HelpRow& row : shown) {
    key = std::max(key, count_characters(row.key));
    default_value = std::max(default_value, count_characters(row.default_value));
  }
  std::string text;
  for (const config_detail::HelpRow& row : shown) {
    const std::string line =
        fmt::format("  {:<{}}  {:<{}}  ", row.key, key, row.default_value, default_value);
    text += line + start_of(row.description, kColumns - count_characters(line)) + "\n";
  }
  return text;
}

}  // namespace moesaic

namespace moesaic::config_detail {
namespace {

std::string in_path(const std::string& path) {
  return path.empty() ? path : " in " + path;
}

/// Returns how to turn off the settings that an argument excludes.
std::string remedy(const Value& object, const std::string& path, const ConfigProblem& problem) {
  if (problem.off_values.empty()) return "";
  std::vector<std::string> others;
  for (size_t i = 0; i < problem.off_values.size(); ++i) {
    if (is_argument(object, problem.offending[i])) continue;
    others.push_back(join_path(path, problem.offending[i]) + "=" + problem.off_values[i]);
  }
  if (others.size() + 1 != problem.off_values.size()) return "; leave one out";
  return fmt::format("; give {} too", fmt::join(others, " "));
}

/// Returns whether a setting is one of the object's, whose keys are `known`, or of a group in it,
/// under the names that the object chooses.
bool is_setting_of(const Value& object, const std::string& path,
                   const std::vector<std::string>& known, const HelpRow& row) {
  if (std::ranges::count(known, row.key.substr(0, row.key.find('.'))) == 0) return false;
  const Value::Object& members = object.members(path);
  const auto chosen =
      std::ranges::find(members, row.choice.substr(0, row.choice.find(' ')), &Value::Member::key);
  if (chosen == members.end() || chosen->value.kind() != Value::Kind::string) return true;
  return row.choice.ends_with(fmt::format(" '{}'", chosen->value.as_string()));
}

/// Returns the first key with the fewest items of lists, whose numbers a user would have to choose,
/// and of keys without items the first with the fewest parts.
std::string shortest_key(const HelpRows& rows) {
  const auto length = [](const HelpRow& row) {
    const std::vector<std::string> parts = split(row.key, '.');
    const auto items = std::ranges::count_if(parts, stands_for_any);
    return std::pair(static_cast<size_t>(items), items == 0 ? parts.size() : 0);
  };
  return std::ranges::min_element(rows, {}, length)->key;
}

}  // namespace

std::string join_path(std::string_view path, std::string_view name) {
  if (path.empty()) return std::string(name);
  return fmt::format("{}.{}", path, name);
}

void check_object(const Value& value, const std::string& path,
                  const std::vector<std::string>& keys) {
  const bool named = std::find(keys.begin(), keys.end(), "name") != keys.end();
  if (named && value.kind() == Value::Kind::string && !path.empty()) {
    fail_usage("{}: '{}' must be an object, found {}; write {{\"name\": {}}} or {}.name={}",
               value.where(), path, value.described(), value.to_json().dump(), path,
               value.as_string());
  }
  if (value.kind() == Value::Kind::boolean && !path.empty()) {
    fail_usage("{}: '{}' must be an object, found {}{}", value.where(), path, value.described(),
               value.as_bool() ? "; write {} for its defaults" : "");
  }
  value.members(path);
}

void check_known(const Value& object, const std::string& path,
                 const std::vector<std::string>& known, HelpRows (*rows)()) {
  const Value::Object& members = object.members(path);
  const auto unknown = std::ranges::find_if(members, [&](const Value::Member& member) {
    return std::ranges::count(known, member.key) == 0;
  });
  if (unknown == members.end()) return;
  const HelpRows all = rows();
  const HelpRows own =
      rows_where(all, [&](const HelpRow& row) { return is_setting_of(object, path, known, row); });
  const HelpRows meant = help_rows_matching(own, unknown->key);
  const auto other = std::ranges::find(all, unknown->key, &HelpRow::key);
  const bool is_exact = !meant.empty() && ends_with_key(meant.front(), unknown->key);
  std::string hint;
  if (other != all.end() && !is_exact) {
    hint = fmt::format("it is a setting of {}", other->choice);
  } else {
    const HelpRows inner = meant.empty() ? help_rows_matching(all, unknown->key) : meant;
    hint = inner.empty() ? did_you_mean(unknown->key, known)
                         : fmt::format("did you mean '{}'?", join_path(path, shortest_key(inner)));
  }
  fail_usage("{}: unknown key {}{}; {}", unknown->origin.text(), printable(unknown->key),
             in_path(path), hint);
}

Value with_current_keys(const Value& object, const std::string& path,
                        const std::vector<RenamedKey>& renamed) {
  Value::Object members = object.members(path);
  bool changed = false;
  for (const RenamedKey& key : renamed) {
    const auto old = std::ranges::find(members, key.former, &Value::Member::key);
    if (old == members.end()) continue;
    const auto now = std::ranges::find(members, key.name, &Value::Member::key);
    const std::string name = join_path(path, key.name), former = join_path(path, key.former);
    bool wins = is_argument(object, key.former);
    if (now != members.end() && wins == is_argument(object, key.name)) {
      if (wins || old->origin.source == now->origin.source) {
        fail_usage("{}: '{}' is the former name of '{}', which is given too ({}); leave it out",
                   old->origin.text(), former, name, now->origin.text());
      }
      wins = now < old;  // What is merged over a file comes last.
    }
    if (const auto& source = old->origin.source; !source || !source->is_stored) {
      log_once(LogLevel::warning,
               fmt::format("{}: '{}' is called '{}' now; the former name is still read",
                           old->origin.text(), former, name),
               fmt::format("{}: {}", source == nullptr ? "" : source->name,
                           path_without(is_digits, split(former, '.'))));
    }
    if (now == members.end()) {
      old->key = key.name;
    } else {
      const Value::Member both =
          wins ? Value::Member{key.name, old->origin, now->value.merged(old->value)}
               : Value::Member{key.name, now->origin, old->value.merged(now->value)};
      *now = both;
      members.erase(old);
    }
    changed = true;
  }
  return changed ? Value(object.origin(), std::move(members)) : object;
}

void fail_missing(const Value& object, const std::string& path, std::string_view name) {
  fail_usage("{}: missing key '{}'{}", object.where(), name, in_path(path));
}

void fail_problem(const Value& object, const std::string& path, const ConfigProblem& problem) {
  if (problem.offending.empty()) {
    fail_usage("{}: {}{}", object.where(), problem.text, in_path(path));
  }
  const std::string place = location_of(object, problem.offending);
  std::string setting = join_path(path, problem.offending.front());
  if (setting.ends_with(':')) setting.pop_back();
  const bool named = path.empty() || place.find(setting) != std::string::npos;
  fail_usage("{}: {}{}{}", place, problem.text, named ? "" : fmt::format(" ({})", setting),
             remedy(object, path, problem));
}

std::string chosen_name(const Value& object, const std::string& path, std::string_view key,
                        const std::vector<std::string>& names) {
  const Value* value = object.find(key);
  if (value == nullptr) return names.front();
  const std::string name = join_path(path, key);
  one_of(names).check(value->as_string(name), *value, name);
  return value->as_string();
}

Size2d read_size2d(const Value& value, const std::string& path, const Rules& rules) {
  const bool pair = value.kind() == Value::Kind::array;
  if (pair && value.items().size() != 2) {
    fail_usage("{}: '{}' must be an integer or [height, width], found {}", value.where(), path,
               value.to_json().dump());
  }
  const auto side = [&](size_t i) {
    const Value& number = pair ? value.items()[i] : value;
    const int64_t length = number.as_int(path);
    rules.check(static_cast<double>(length), number, path);
    return length;
  };
  return {side(0), side(1)};
}

Json write_size2d(const Size2d& sides) {
  if (sides.is_square()) return sides.height;
  return Json::array({sides.height, sides.width});
}

Json write_number(double number) {
  if (!std::isfinite(number)) fail_usage("a setting is {}, which JSON cannot represent", number);
  return number;
}

Interval read_interval(const Value& value, const std::string& path, const Rules& rules,
                       Interval::Unit plain) {
  Interval interval{0, plain, plain};
  if (value.kind() != Value::Kind::string) {
    interval.count = value.as_int(path);
  } else {
    const std::string& text = value.as_string();
    const size_t space = text.find(' ');
    const std::string number = text.substr(0, space);
    const std::string unit = space == std::string::npos ? "" : text.substr(space + 1);
    const bool steps = unit == "step" || unit == "steps";
    if (!is_digits(number) || number.size() > 15 ||
        (!steps && unit != "epoch" && unit != "epochs")) {
      fail_usage("{}: '{}' must be a text such as \"20 steps\" or \"1 epoch\"{}, found {}",
                 value.where(), path,
                 plain == Interval::Unit::steps ? ", or a number of steps" : "", value.described());
    }
    interval.count = std::stoll(number);
    interval.unit = steps ? Interval::Unit::steps : Interval::Unit::epochs;
  }
  rules.check(static_cast<double>(interval.count), value, path);
  if (interval.count == 0) return {0, plain, plain};
  const bool bare = value.kind() != Value::Kind::string;
  if (bare && plain == Interval::Unit::epochs) {
    log_once(
        LogLevel::warning,
        fmt::format("{0}: '{1}' is the bare number {2}, which is read as \"{3}\" as in earlier "
                    "versions; write \"{3}\", or \"{4}\" if steps are meant",
                    value.where(), path, interval.count, to_text(interval),
                    to_text(Interval::from_steps(interval.count))));
  }
  return interval;
}

std::string type_of(const Interval& default_value) {
  return fmt::format("{} or a number of {}s", "\"N steps\", \"N epochs\"",
                     unit_name(default_value.default_unit));
}

Json write_interval(const Interval& interval) {
  const bool bare =
      interval.unit == Interval::Unit::steps && interval.default_unit == interval.unit;
  if (bare || interval.count == 0) return interval.count;
  return to_text(interval);
}

}  // namespace moesaic::config_detail
