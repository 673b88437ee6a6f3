// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>

#include "moesaic/base/checked.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

const char* unit_name(Interval::Unit unit) {
  return unit == Interval::Unit::steps ? "step" : "epoch";
}

/// Says once of each place, however often it is read, that a bare number there means epochs.
void warn_of_epochs(const Interval& interval, const std::string& where, const std::string& path) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  if (!said.insert(where).second) return;
  log_warning(
      "{}: '{}' is the bare number {}, which is read as \"{}\" as in earlier versions; write "
      "\"{}\", or \"{}\" if steps are meant",
      where, path, interval.count, to_text(interval), to_text(interval),
      to_text(Interval::of_steps(interval.count)));
}

}  // namespace

bool Interval::completed_by(int64_t steps, int64_t run_step, int64_t phase_step,
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

}  // namespace moesaic

namespace moesaic::config_detail {
namespace {

std::string in_path(const std::string& path) {
  return path.empty() ? path : " in " + path;
}

/// Returns how to turn off the settings that an argument excludes.
std::string remedy(const Value& object, const std::string& path, const ConfigProblem& problem) {
  if (problem.off.empty()) return "";
  std::vector<std::string> others;
  for (size_t i = 0; i < problem.off.size(); ++i) {
    if (is_argument(object, problem.blamed[i])) continue;
    others.push_back(join_path(path, problem.blamed[i]) + "=" + problem.off[i]);
  }
  if (others.size() + 1 != problem.off.size()) return "; leave one out";
  return fmt::format("; give {} too", fmt::join(others, " "));
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
    fail_usage("{}: '{}' must be an object, found {}; did you mean {{\"name\": {}}} or {}.name={}?",
               value.where(), path, value.described(), value.to_json().dump(), path,
               value.as_string());
  }
  value.members(path);
}

void check_keys(const Value& object, const std::string& path,
                const std::vector<std::string>& known) {
  for (const Value::Member& member : object.members(path)) {
    if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
    fail_usage("{}: unknown key {}{}; {}", member.origin.text(), printable(member.key),
               in_path(path), did_you_mean(member.key, known));
  }
}

void fail_missing(const Value& object, const std::string& path, std::string_view name) {
  fail_usage("{}: missing key '{}'{}", object.where(), name, in_path(path));
}

void fail_problem(const Value& object, const std::string& path, const ConfigProblem& problem) {
  if (problem.blamed.empty()) {
    fail_usage("{}: {}{}", object.where(), problem.text, in_path(path));
  }
  const std::string place = place_of(object, problem.blamed);
  std::string setting = join_path(path, problem.blamed.front());
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

Sides read_sides(const Value& value, const std::string& path, const Rules& rules) {
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

nlohmann::ordered_json write_sides(const Sides& sides) {
  if (sides.is_square()) return sides.height;
  return nlohmann::ordered_json::array({sides.height, sides.width});
}

nlohmann::ordered_json write_number(double number) {
  if (!std::isfinite(number)) fail_usage("a setting holds {}, which is no JSON number", number);
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
    const bool digits = !number.empty() && number.size() <= 15 &&
                        number.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || (!steps && unit != "epoch" && unit != "epochs")) {
      fail_usage(
          "{}: '{}' must be a text such as \"20 steps\" or \"1 epoch\", or a number of steps, "
          "found {}",
          value.where(), path, value.described());
    }
    interval.count = std::stoll(number);
    interval.unit = steps ? Interval::Unit::steps : Interval::Unit::epochs;
  }
  rules.check(static_cast<double>(interval.count), value, path);
  if (interval.count == 0) return {0, plain, plain};
  const bool bare = value.kind() != Value::Kind::string;
  if (bare && plain == Interval::Unit::epochs) warn_of_epochs(interval, value.where(), path);
  return interval;
}

nlohmann::ordered_json write_interval(const Interval& interval) {
  const bool bare = interval.unit == Interval::Unit::steps && interval.plain == interval.unit;
  if (bare || interval.count == 0) return interval.count;
  return to_text(interval);
}

}  // namespace moesaic::config_detail
