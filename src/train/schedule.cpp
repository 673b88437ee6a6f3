// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace moesaic {
namespace {

double shape(const std::string& name, double x) {
  if (name == "cosine") return 0.5 * (1.0 + std::cos(std::numbers::pi * x));
  return 1.0 - x;
}

double inverse_root(const ScheduleConfig& schedule, double peak, int64_t update, int64_t steps) {
  const int64_t cooldown = steps - schedule.cooldown_steps;
  const auto after = static_cast<double>(std::min(update, cooldown) - schedule.warmup_steps);
  const double rate = peak / std::sqrt(1.0 + after / static_cast<double>(schedule.timescale));
  if (update < cooldown) return rate;
  return rate * std::max(0.0, static_cast<double>(steps - update)) /
         static_cast<double>(std::max<int64_t>(1, schedule.cooldown_steps));
}

}  // namespace

double learning_rate(const ScheduleConfig& schedule, double peak, int64_t update, int64_t steps,
                     int64_t steps_per_epoch) {
  if (schedule.by_epoch) update -= update % steps_per_epoch;
  const int64_t warmup = schedule.warmup_steps;
  if (update < warmup) {
    return peak * static_cast<double>(update) / static_cast<double>(warmup);
  }
  if (schedule.name == "constant") return peak;
  if (schedule.name == "rsqrt") return inverse_root(schedule, peak, update, steps);
  const double end = schedule.end_lr.value_or(peak * schedule.end);
  const auto after = static_cast<double>(update - warmup);
  if (schedule.period) {
    const int64_t period = *schedule.period * (schedule.by_epoch ? steps_per_epoch : 1);
    return end + (peak - end) * shape(schedule.name, after / static_cast<double>(period));
  }
  const double x = after / static_cast<double>(steps - warmup);
  return end + (peak - end) * shape(schedule.name, std::min(x, 1.0));
}

}  // namespace moesaic
