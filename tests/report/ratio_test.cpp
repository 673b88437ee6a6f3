// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/runs.h"

#include <cmath>

#include "base/support.h"
#include "moesaic/config/document.h"
#include "moesaic/config/schema.h"
#include "support/matchers.h"
#include "support/warnings.h"

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
  EXPECT_EQ(made->num_runs, 5);
  RatioConfig never = config;
  never.level = 99;
  EXPECT_THAT(test::said_by([&] { EXPECT_FALSE(ratio_row(never, rows)); }),
              HasSubstr("'b/n...' do not cross accuracy 99"));
}

TEST(Ratio, ReadsTheFormerNameOfTheSourceMetric) {
  const testing::Warnings warnings;
  const auto read = [](const std::string& key) {
    return to_json(
        parse<RatioConfig>(Document::from_text(R"({"name": "ratio", "metric": "cost", )" + key +
                                                   R"(: "flops", "numerator": "small",
                                                              "denominator": "large"})",
                                               "ratio.json")
                               .root()));
  };
  EXPECT_EQ(read(R"("of")"), read(R"("source_metric")"));
  EXPECT_THAT(warnings.texts(),
              ::testing::ElementsAre(HasSubstr("'of' is called 'source_metric' now")));
}

TEST(Ratio, OfTwoRowsIsThatOfTheirMeans) {
  const RatioConfig config{"ratio", "cost", "flops", "small", "large"};
  EXPECT_EQ(config_problem(config).text, "");
  const std::vector<ResultRow> rows = {
      {"large", "flops", 8}, {"small", "flops", 6}, {"small", "steps", 1}};
  EXPECT_EQ(ratio_row(config, rows)->measured, 0.75);
  const RatioConfig by_none{"ratio", "cost", "flops", "small", "none"};
  EXPECT_THAT(test::said_by([&] {
                EXPECT_FALSE(ratio_row(by_none, {{"none", "flops", 0}, {"small", "flops", 6}}));
              }),
              HasSubstr("'none' has 0 for flops"));
  RatioConfig half = config;
  half.level = 95;
  EXPECT_THAT(config_problem(half).text, HasSubstr("belong together"));
  const RatioConfig of_steps{"ratio", "cost", "steps", "small", "large"};
  EXPECT_THAT(test::said_by([&] { EXPECT_FALSE(ratio_row(of_steps, rows)); }),
              HasSubstr("the row 'large' has no steps: no cost"));
}

/// Rows of the curve `name` at sizes 1, 10 and 100, in runs with seeds 1, 2, ...
void add_curve(std::vector<ResultRow>& rows, const std::string& name,
               const std::vector<std::vector<double>>& runs) {
  for (size_t i = 0; i < 3; ++i) {
    SeedValues values;
    for (const auto& run : runs) values[static_cast<int64_t>(values.size()) + 1] = run[i];
    rows.push_back(row_of_runs(row_of_size(name, std::pow(10.0, i)), "accuracy", values));
  }
}

/// Of a ratio of means over two runs the pseudo-values are 2 R - R_2 and 2 R - R_1, where R_i is
/// the ratio of run i.
TEST(Ratio, HasTheSpreadOfTheJackknife) {
  const std::vector<ResultRow> rows = {row_of_runs("a", "time", {{1, 2.0}, {2, 6.0}}),
                                       row_of_runs("b", "time", {{1, 4.0}, {2, 8.0}})};
  const ResultRow made = *ratio_row({"ratio", "cost", "time", "a", "b"}, rows);
  EXPECT_NEAR(made.measured, 4.0 / 6.0, 1e-12);
  EXPECT_NEAR(*made.std, std::abs(2.0 / 4.0 - 6.0 / 8.0) / std::sqrt(2.0), 1e-12);
  EXPECT_EQ(made.num_runs, 2);
  EXPECT_TRUE(made.values.empty());
  const std::vector<ResultRow> others = {rows[0], row_of_runs("b", "time", {{1, 4.0}, {3, 8.0}})};
  EXPECT_FALSE(ratio_row({"ratio", "cost", "time", "a", "b"}, others)->std)
      << "runs of other seeds are no pairs";
}

/// Curves that are linear in log10 of the size cross 90 at 10^(c) with a known c.
TEST(Fit, OfCurvesIsOfTheSizesAtALevel) {
  std::vector<ResultRow> rows;
  add_curve(rows, "l1/n", {{80, 100, 100}, {80, 100, 100}});  // 10^0.5
  add_curve(rows, "l10/n", {{60, 80, 100}, {60, 80, 100}});   // 10^1.5
  FitConfig fit{"growth", "accuracy", {{"l1/n", 1.0}, {"l10/n", 10.0}}, 90.0, {1, 10, 100}};
  EXPECT_EQ(config_problem(fit).text, "");
  const ResultRow made = *fit_row(fit, {}, rows);
  EXPECT_EQ(made.metric, "size_exponent");
  EXPECT_NEAR(made.measured, 1.0, 1e-9);
  EXPECT_NEAR(*made.std, 0.0, 1e-9);
  const std::vector<FitPoint> points = fit_points(fit, rows);
  ASSERT_EQ(points.size(), 2U);
  EXPECT_NEAR(points[1].y, std::pow(10.0, 1.5), 1e-9);
  fit.level = 70.0;
  EXPECT_THAT(test::said_by([&] { EXPECT_FALSE(fit_row(fit, {}, rows)); }),
              HasSubstr("'l1/n...' do not cross accuracy 70: no size_exponent"));
  fit.sizes.clear();
  EXPECT_THAT(config_problem(fit).text, HasSubstr("belong together"));
}

}  // namespace
}  // namespace moesaic
