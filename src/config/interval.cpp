// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/interval.h"

#include <fmt/format.h>

#include <limits>
#include <mutex>
#include <set>

#include "moesaic/base/checked.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/text.h"
#include "moesaic/config/detail/reader.h"
#include "moesaic/config/detail/writer.h"

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
  if (bare && plain == Interval::Unit::epochs) warn_of_epochs(interval, value.where(), path);
  return interval;
}

nlohmann::ordered_json write_interval(const Interval& interval) {
  const bool bare = interval.unit == Interval::Unit::steps && interval.plain == interval.unit;
  if (bare || interval.count == 0) return interval.count;
  return to_text(interval);
}

}  // namespace moesaic::config_detail
