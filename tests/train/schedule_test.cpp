// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/gradient_phase.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

namespace moesaic {
namespace {

TEST(Schedule, WarmsUpLinearlyFromZeroForEveryName) {
  for (const char* name : {"cosine", "linear", "constant"}) {
    const ScheduleConfig schedule{name, 4, 0.0};
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 2.0, 0, 10), 0.0) << name;
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 2.0, 1, 10), 0.5) << name;
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 2.0, 3, 10), 1.5) << name;
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 2.0, 4, 10), 2.0) << name;
  }
}

TEST(Schedule, CosineFallsByTheClosedForm) {
  const ScheduleConfig schedule{"cosine", 0, 0.0};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1.0, 0, 4), 1.0);
  EXPECT_NEAR(learning_rate(schedule, 1.0, 1, 4), 0.8535533905932737, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 1.0, 2, 4), 0.5, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 1.0, 3, 4), 0.1464466094067263, 1e-15);
}

TEST(Schedule, LinearFallsEvenlyAndConstantStays) {
  EXPECT_DOUBLE_EQ(learning_rate({"linear", 2, 0.0}, 3.0, 4, 8), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate({"linear", 2, 0.0}, 3.0, 7, 8), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate({"constant", 2, 0.0}, 3.0, 7, 8), 3.0);
}

TEST(Schedule, EndIsTheFractionThatIsLeft) {
  EXPECT_NEAR(learning_rate({"cosine", 0, 0.2}, 10.0, 500, 1000), 6.0, 1e-12);
  EXPECT_NEAR(learning_rate({"linear", 0, 0.2}, 10.0, 999, 1000), 2.0, 0.01);
  EXPECT_NEAR(learning_rate({"cosine", 0, 0.2}, 10.0, 999, 1000), 2.0, 0.01);
}

TEST(Schedule, AWarmUpMayOutlastThePhase) {
  EXPECT_DOUBLE_EQ(learning_rate({"cosine", 100, 0.0}, 1.0, 4, 5), 0.04);
}

TEST(Schedule, OnlyTheFirstWarmUpUpdateHasRateZero) {
  for (const char* name : {"cosine", "linear"}) {
    EXPECT_EQ(learning_rate({name, 5, 0.0}, 1.0, 0, 20), 0.0);
    for (int64_t i = 1; i < 20; ++i) EXPECT_GT(learning_rate({name, 5, 0.0}, 1.0, i, 20), 0.0);
  }
}

TEST(Schedule, ACosineWithAPeriodRisesAgain) {
  ScheduleConfig schedule{"cosine"};
  schedule.period = 200;
  for (const auto& [step, rate] : std::vector<std::pair<int64_t, double>>{
           {0, 2.0}, {100, 1.0}, {200, 0.0}, {300, 1.0}, {400, 2.0}, {50, 1.0 + std::sqrt(0.5)}}) {
    EXPECT_NEAR(learning_rate(schedule, 2.0, step, 450), rate, 1e-12) << step;
  }
}

TEST(Schedule, ByEpochItChangesBetweenEpochsAlone) {
  ScheduleConfig schedule{"cosine"};
  schedule.period = 4;
  schedule.by_epoch = true;
  for (int64_t step = 0; step < 21; ++step) {
    const double wanted =
        0.5 * (1.0 + std::cos(std::numbers::pi * static_cast<double>(step / 7) / 4));
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 1.0, step, 21, 7), wanted) << step;
  }
  schedule.period.reset();
  EXPECT_NEAR(learning_rate(schedule, 1.0, 13, 14, 7), 0.5, 1e-15);
}

}  // namespace
}  // namespace moesaic
