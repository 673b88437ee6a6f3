// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/schedule.h"

#include <cmath>
#include <numbers>

namespace moesaic {
namespace {

double shape(const std::string& name, double x) {
  if (name == "cosine") return 0.5 * (1.0 + std::cos(std::numbers::pi * x));
  if (name == "linear") return 1.0 - x;
  return 1.0;
}

}  // namespace

double learning_rate(const ScheduleConfig& schedule, double peak, int64_t update, int64_t steps) {
  const int64_t warmup = schedule.warmup_steps;
  if (update < warmup) {
    return peak * static_cast<double>(update) / static_cast<double>(warmup);
  }
  if (schedule.name == "constant") return peak;
  const double x = static_cast<double>(update - warmup) / static_cast<double>(steps - warmup);
  return peak * (schedule.end + (1.0 - schedule.end) * shape(schedule.name, x));
}

}  // namespace moesaic
