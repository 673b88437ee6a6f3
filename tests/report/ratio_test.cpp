// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/results.h"

#include <cmath>

#include "support/matchers.h"

namespace moesaic {
namespace {

TEST(Crossing, LiesBetweenTwoSizesLinearInTheLogarithm) {
  EXPECT_NEAR(crossing({100, 400}, {90, 100}, 95).value(), 200.0, 1e-9);
  EXPECT_NEAR(crossing({10, 100, 1000}, {80, 90, 94}, 91).value(), 100 * std::pow(10, 0.25), 1e-9);
  EXPECT_FALSE(crossing({10, 100}, {80, 90}, 95)) << "it never gets there";
  EXPECT_FALSE(crossing({10, 100}, {96, 97}, 95)) << "it is there before the first size";
}

TEST(Ratio, IsOfTheCurvesMeans) {
  const RatioConfig config{"ratio", "samples", "accuracy", "a/n", "b/n", 95, {100, 400}};
  const std::vector<ResultRow> rows = {{"a/n100", "accuracy", 90, 1.0, 5},
                                       {"a/n400", "accuracy", 100, 1.0, 5},
                                       {"b/n100", "accuracy", 91, 1.0, 5},
                                       {"b/n400", "accuracy", 95, 1.0, 5},
                                       {"b/n400", "loss", 1, 1.0, 5}};
  const std::optional<ResultRow> made = ratio_row(config, rows);
  ASSERT_TRUE(made);
  EXPECT_NEAR(made->measured, 0.5, 1e-12);
  EXPECT_EQ(made->name, "ratio");
  EXPECT_EQ(made->metric, "samples");
  EXPECT_EQ(made->runs, 5);
  RatioConfig never = config;
  never.level = 99;
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(ratio_row(never, rows));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("'b/n...' do not cross accuracy 99"));
}

TEST(Ratio, OfTwoRowsIsThatOfTheirMeans) {
  const RatioConfig config{"ratio", "cost", "flops", "small", "large"};
  EXPECT_EQ(config_problem(config).text, "");
  const std::vector<ResultRow> rows = {
      {"large", "flops", 8}, {"small", "flops", 6}, {"small", "steps", 1}};
  EXPECT_EQ(ratio_row(config, rows)->measured, 0.75);
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(ratio_row({"ratio", "cost", "flops", "small", "none"},
                         {{"none", "flops", 0}, {"small", "flops", 6}}));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("'none' has 0 for flops"));
  RatioConfig half = config;
  half.level = 95;
  EXPECT_THAT(config_problem(half).text, HasSubstr("has a level and sizes"));
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(ratio_row({"ratio", "cost", "steps", "small", "large"}, rows));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("the row 'large' has no steps: no cost"));
}

}  // namespace
}  // namespace moesaic
